"""What ranks of earlier launches have left is removed on every machine, and nothing that a rank of this one uses."""

from types import SimpleNamespace
from typing import Any

from springtide.app.training.ranks.ranks import Ranks
from springtide.app.training.ranks.spill_folders import remove_former_spills, spill_folder


def test_spills_of_former_ranks_are_removed_also_where_rank_0_is_not(tmp_path):
    for name in ("rank-0/7", "rank-2/8", "rank-3/8/main", "rank-9/6", "7", "8", "other"):
        (tmp_path / name).mkdir(parents=True)
    ranks: Any = SimpleNamespace(is_alone=False, rank=2)
    assert spill_folder(tmp_path, ranks) == tmp_path / "rank-2"
    remove_former_spills(tmp_path, ranks, 8)
    # rank 3 of this launch may be on another machine with the same disk
    assert sorted(path.name for path in tmp_path.iterdir()) == ["8", "other", "rank-2", "rank-3"]


def test_one_process_removes_those_of_ranks(tmp_path):
    for name in ("rank-0/7", "8"):
        (tmp_path / name).mkdir(parents=True)
    assert spill_folder(tmp_path, Ranks()) == tmp_path
    remove_former_spills(tmp_path, Ranks(), 8)
    assert [path.name for path in tmp_path.iterdir()] == ["8"]
