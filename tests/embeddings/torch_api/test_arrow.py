"""DynamicEmbedding's rows as Arrow tables, and from pretrained matrices."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from springtide import DynamicEmbedding


def trained(num_ids: int = 100, capacity: int = 4096, **settings: Any) -> DynamicEmbedding:
    emb = DynamicEmbedding(4, capacity, **settings)
    for end in (num_ids, num_ids // 2):
        emb(torch.arange(end)).sum().backward()
    return emb


def table(ids: Any = (5, -6), vectors: Any = ((1, 2, 3, 4), (5, 6, 7, 8)), **others: Any) -> pa.Table:
    if not isinstance(vectors, pa.Array):
        vectors = pa.array(vectors, pa.list_(pa.float32(), 4))
    return pa.table({"ids": ids, "vectors": vectors, **others})


@pytest.mark.parametrize("spilled", [False, True])
def test_all_rows_are_exported_by_ascending_id(spilled: bool, tmp_path: Path) -> None:
    now = iter([1.5, 2.5])
    spill = {"capacity": 16, "spill": tmp_path / "spill"} if spilled else {}
    emb = trained(clock=lambda: next(now), **spill)
    rows = emb.export()
    vector = pa.list_(pa.float32(), 4)
    kinds = {"ids": pa.int64(), "vectors": vector, "count": pa.int64(), "last_seen_ms": pa.int64()}
    assert {field.name: field.type for field in rows.schema} == kinds
    assert rows["ids"].to_pylist() == list(range(100))
    assert rows["count"].to_pylist() == [2] * 50 + [1] * 50
    assert rows["last_seen_ms"].to_pylist() == [2500] * 50 + [1500] * 50
    assert torch.equal(torch.tensor(rows["vectors"].to_pylist()), emb.lookup(torch.arange(100))[0])
    emb.close()


@pytest.mark.parametrize("spilled", [False, True])
def test_chosen_rows_are_exported_in_the_given_order(spilled: bool, tmp_path: Path) -> None:
    emb = trained(**({"capacity": 16, "spill": tmp_path / "spill"} if spilled else {}))
    emb.forget(torch.tensor([7]))
    rows = emb.export(torch.tensor([[99, 7], [3, 99], [-1, 60]], dtype=torch.int32))
    assert rows["ids"].to_pylist() == [99, 3, 60]
    assert rows["count"].to_pylist() == [1, 2, 1]
    assert torch.equal(torch.tensor(rows["vectors"].to_pylist()), emb.lookup(torch.tensor([99, 3, 60]))[0])
    assert emb.export(torch.tensor([], dtype=torch.int64)).num_rows == 0
    emb.close()


def test_exported_rows_can_be_imported(tmp_path: Path) -> None:
    emb = trained()
    small = DynamicEmbedding(4, 16, spill=tmp_path / "spill")
    assert small.import_arrow(emb.export()) == 0
    assert small.export().equals(emb.export())
    small(torch.arange(100)).sum().backward()
    assert small.export()["count"].to_pylist() == [3] * 50 + [2] * 50
    small.close()


def test_the_shared_row_is_not_exported() -> None:
    emb = DynamicEmbedding(4, 64, admission={"min_count": 5})
    emb(torch.tensor([0, 1, 2])).sum().backward()
    assert emb.export().num_rows == 0
    assert len(emb.get_extra_state()["ids"]) == 1


def test_imported_rows_replace_existing_ones() -> None:
    emb = trained(optimizer={"name": "adam", "lr": 0.1})
    emb.import_arrow(table([1, -6], count=pa.array([5, 0], pa.uint8()), last_seen_ms=[7, 8]))
    rows = emb.export(torch.tensor([-6, 1]))
    assert rows.to_pydict() == {
        "ids": [-6, 1],
        "vectors": [[5, 6, 7, 8], [1, 2, 3, 4]],
        "count": [0, 5],
        "last_seen_ms": [8, 7],
    }
    state = emb.get_extra_state()
    assert state["states"][state["ids"] == 1].abs().sum() == 0
    assert emb.export().num_rows == 101
    emb.table.check_integrity()


@pytest.mark.parametrize(
    "vectors",
    [
        pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.float64())),
        pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.large_list(pa.float32())),
        pa.array([[9, 9, 9, 9], [1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.float32(), 4)).slice(1),
        pa.array([[9, 9, 9, 9], [1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.float32())).slice(1),
        pa.array(np.arange(1, 9, dtype=np.float16).reshape(2, 4).tolist(), pa.list_(pa.float16(), 4)),
    ],
)
def test_vectors_of_any_floating_and_list_type_are_accepted(vectors: pa.Array) -> None:
    emb = DynamicEmbedding(4, 64)
    emb.import_arrow(table(vectors=vectors))
    assert emb.lookup(torch.tensor([5, -6]))[0].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    emb.import_arrow(pa.concat_tables([table([1, 2]), table([3, 4])]))
    emb.import_arrow(table([8, 9]).to_batches()[0])
    emb.import_arrow(table().slice(0, 0))
    assert emb.export()["ids"].to_pylist() == [-6, 1, 2, 3, 4, 5, 8, 9]


BIG = pa.array([1, 2**63], pa.uint64())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (table([3, 3]), "id 3 occurs twice"),
        (table([3, None]), "ids contains 1 nulls"),
        (table([1.0, 2.0]), "ids must be integers, not double"),
        (table(["1", "2"]), "ids must be integers, not string"),
        (table(BIG), "ids must fit into int64"),
        (table(vectors=pa.array([[1.0] * 3] * 2, pa.list_(pa.float32(), 3))), "3 numbers, but dim is 4"),
        (table(vectors=pa.array([[1.0] * 4, [1.0] * 5])), "5 numbers, but dim is 4"),
        (table(vectors=pa.array([[1.0] * 4, None], pa.list_(pa.float32(), 4))), "vectors contains 1 nulls"),
        (table(vectors=pa.array([[1.0] * 4, [1.0, None, 1.0, 1.0]])), "vectors contains 1 nulls"),
        (table(vectors=pa.array([[1, 2, 3, 4]] * 2)), "floating-point"),
        (table(vectors=pa.array([1.0, 2.0])), "floating-point"),
        (table(vectors=((1, 2, 3, 4), (5, float("nan"), 7, 8))), "id -6 contains a number that is not finite"),
        (table(vectors=pa.array([[1.0] * 4, [1e300] * 4])), "not finite in float32"),
        (table(count=[1, -1]), "count contains -1"),
        (table(count=[1, None]), "count contains 1 nulls"),
        (table(last_seen_ms=[-5, 0]), "last_seen_ms contains -5"),
        (table(last_seen_ms=pa.array([1, 2], pa.timestamp("ms"))), "last_seen_ms must be integers"),
        (table(counts=[1, 2]), "counts"),
        (table().select(["ids"]), "ids, vectors"),
        (table().rename_columns(["ids", "ids"]), "ids, vectors"),
        ({"ids": [1], "vectors": [[1.0] * 4]}, "dict"),
        (None, "NoneType"),
    ],
)
def test_an_invalid_table_changes_nothing(wrong: Any, named: str) -> None:
    emb = trained()
    before = emb.get_extra_state()
    with pytest.raises(ValueError, match=named):
        emb.import_arrow(wrong)
    after = emb.get_extra_state()
    assert all(torch.equal(before[name], after[name]) for name in ("ids", "values", "states", "counts"))


def test_import_returns_the_number_of_lost_rows() -> None:
    emb = trained(num_ids=10, capacity=16)
    many = table(list(range(100, 300)), pa.array([[1.0] * 4] * 200))
    lost = emb.import_arrow(many)
    assert lost == 210 - emb.export().num_rows == emb.counters()["lost"]
    emb.table.check_integrity()


def test_without_pyarrow_the_rest_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    emb = trained()
    for call in (emb.export, lambda: emb.import_arrow(None)):
        with pytest.raises(ImportError, match="need pyarrow"):
            call()


@pytest.mark.parametrize("num_ids", [1, 20, 5000])
def test_every_row_of_a_pretrained_matrix_is_known(num_ids: int) -> None:
    matrix = torch.randn(num_ids, 4, generator=torch.Generator().manual_seed(0))
    emb = DynamicEmbedding.from_pretrained(matrix)
    assert torch.equal(emb.eval()(torch.arange(num_ids)), matrix)
    assert emb.capacity.num_slots < 5 * num_ids + 64


def test_a_pretrained_matrix_can_have_given_ids(tmp_path: Path) -> None:
    matrix, ids = np.arange(12, dtype=np.float64).reshape(3, 4), [-7, 2**62, 0]
    settings: dict[str, Any] = {"capacity": 16, "optimizer": {"name": "sgd", "lr": 1.0}, "dtype": torch.bfloat16}
    emb = DynamicEmbedding.from_pretrained(matrix, ids, spill=tmp_path / "spill", **settings)
    emb(torch.tensor(ids)).sum().backward()
    assert emb.lookup(torch.tensor(ids))[0].tolist() == (matrix - 1).tolist()
    emb.close()


@pytest.mark.parametrize(
    ("matrix", "ids", "named"),
    [
        (torch.zeros(3), None, "2 axes"),
        (torch.zeros(3, 4), torch.tensor([1, 2]), "2 ids"),
        (torch.zeros(3, 4), torch.tensor([1, 2, 1]), "twice"),
        (torch.full((1, 4), torch.inf), None, "not finite"),
        (torch.zeros(3, 4), torch.tensor([1.0, 2.0, 3.0]), "float32"),
    ],
)
def test_an_invalid_matrix_is_reported(matrix: torch.Tensor, ids: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DynamicEmbedding.from_pretrained(matrix, ids)
