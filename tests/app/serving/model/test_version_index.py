from springtide.app.serving.model.version_index import VersionEntry, VersionIndex


def entry(number):
    return VersionEntry(number=number, parent=0, checksum=number, created_ms=0, record_ms=(), meta={})


def test_versions_are_listed_newest_first_in_pages():
    index = VersionIndex()
    for number in range(1, 11):
        index.add(entry(number))
    assert [found.number for found in index.newest(limit=3)] == [10, 9, 8]
    assert [found.number for found in index.newest(limit=3, before=8)] == [7, 6, 5]
    assert index.newest(limit=3, before=1) == []
    assert [found.number for found in index.newest(limit=30, before=99)] == list(range(10, 0, -1))
    assert index.oldest == 1


def test_versions_after_a_restart_from_a_base_replace_later_ones():
    index = VersionIndex()
    for number in (1, 2, 3):
        index.add(entry(number))
    index.add(entry(3))
    index.add(entry(2))
    assert [found.number for found in index.newest(limit=9)] == [3, 2, 1]
    index.add(VersionEntry(number=9, parent=2, checksum=5, created_ms=0, record_ms=(), meta={}))
    assert index.find(9).checksum == 5
    assert index.find(4) is None


def test_a_manifest_shows_checksums_as_hexadecimal_strings():
    document = VersionEntry(
        number=3 * 2**32 + 7, parent=2**63, checksum=1, created_ms=5, record_ms=(), meta={"step": 4}
    ).document()
    assert document["name"] == "3.7"
    assert document["parent"] == "8000000000000000"
    assert document["checksum"] == "0000000000000001"
    assert (document["epoch"], document["count"], document["step"]) == (3, 7, 4)
