from tests.stream.toy_columns import A, columns_of


def test_slices_divide_rows_dead_letters_and_end_offsets():
    whole = columns_of(A, "grrdrrgd", 5)
    first, second = whole.slice(0, 3), whole.slice(3, 4)
    assert first.end_offsets == {A: 10}
    assert second.end_offsets == {A: 13}
    assert [letter.offset for letter in first.dead_letters] == [8]
    assert [letter.offset for letter in second.dead_letters] == [12]
    assert first.offset_N.tolist() + second.offset_N.tolist() == [6, 7, 9, 10]
