"""The rows of a version equal a dictionary's at each version, in whichever table they are."""

import pytest

from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.row_image import RowImage
from tests.support.pinned_log import image_rows
from tests.support.random_versions import RandomVersions
from tests.support.tables_log import FEATURES, TablesLog
from tests.support.writer_log import WriterLog


@pytest.mark.parametrize("log", [WriterLog, TablesLog], indirect=True)
def test_each_version_has_the_rows_of_a_dictionary(log: WriterLog) -> None:
    with log.writer() as writer:
        made = RandomVersions(log, writer, features=FEATURES if log.tables else (0, 1))
        made.write(8)
        made.compact()
        made.write(8)
        writer.sync()
        index = LogIndex(log.directory)
        for number in index.numbers[::3]:
            world = made.worlds[number]
            assert image_rows(log.directory, number) == world
            image = RowImage(index, number, range_bytes=2_000)
            for table in image.tables:
                held = {feature for feature in FEATURES if table.names.name_of(feature) == table.name}
                assert image.num_rows(table) == sum(key[0] in held for key in world)
            for feature in made.features:
                found = {int(row_id) for rows in image.rows(feature, with_values=False) for row_id in rows.id}
                assert found == {row_id for number, row_id in world if number == feature}
