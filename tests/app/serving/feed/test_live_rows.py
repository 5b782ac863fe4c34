import numpy as np
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View

from app.version_log.read.live_rows import count_live_rows, live_rows


def test_rows_shared_by_ids_that_are_not_admitted_are_nobodys(world):
    world.log.start()
    world.log.publish({(0, 1): [1, 2, 3, 4], (0, 2): [5, 6, 7, 8], (SHARED_ROW_OFFSET, 0): [9, 9, 9, 9]})
    directory = LogDirectory(world.log.path)
    view = View.open(directory.newest_base())
    for record in directory.records(view.tip):
        view = view.apply(record)
    assert count_live_rows(view) == 2
    ids = np.concatenate([rows.id for rows in live_rows(view)])
    assert sorted(ids.tolist()) == [1, 2]
