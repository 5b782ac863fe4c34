from springtide.stream.columns import RawRecords
from springtide.stream.positions import Partition
from tests.stream.toy_columns import A, columns_of

RECORDS = RawRecords.from_messages(
    Partition("clicks", 0), [b"a", None, b"ccc"], keys=[b"k", None, b""], offsets=[3, 5, 9], end=12
)


def contents(raw):
    return [(int(raw.offset_N[n]), raw.key(n), raw.value(n)) for n in range(len(raw))], raw.end


def test_keys_and_values_are_copied_out_of_one_buffer():
    assert contents(RECORDS) == ([(3, b"k", b"a"), (5, None, None), (9, b"", b"ccc")], 12)


def test_records_before_an_offset_end_there():
    assert contents(RECORDS.before(6)) == ([(3, b"k", b"a"), (5, None, None)], 6)
    assert contents(RECORDS.before(2)) == ([], 2)
    assert RECORDS.before(12) is RECORDS


def test_records_from_an_offset_keep_their_end():
    assert contents(RECORDS.from_offset(5)) == ([(5, None, None), (9, b"", b"ccc")], 12)
    assert contents(RECORDS.from_offset(10)) == ([], 12)
    assert RECORDS.from_offset(3) is RECORDS


def test_slices_divide_rows_dead_letters_and_end_offsets():
    whole = columns_of(A, "grrdrrgd", 5)
    first, second = whole.slice(0, 3), whole.slice(3, 4)
    assert first.end_offsets == {A: 10}
    assert second.end_offsets == {A: 13}
    assert [letter.offset for letter in first.dead_letters] == [8]
    assert [letter.offset for letter in second.dead_letters] == [12]
    assert first.offset_N.tolist() + second.offset_N.tolist() == [6, 7, 9, 10]
