"""Compiled kernels in a store: found by what they are, loaded without compiling, refused where anything differs."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import typeof
from numba.core import event
from numba.core.caching import NullCache

from springtide.kernels import kernel_store
from springtide.kernels import njit as compiling
from springtide.kernels.kernel_store import (
    MANIFEST,
    Choice,
    KernelStore,
    choose,
    entry_name,
    installed_store,
    missing_features,
    write_store,
)
from springtide.kernels.njit import Recording, njit
from tests.support.processes import ROOT

NOTHING: tuple[str, ...] = ()
IMPOSSIBLE = ("a feature that no CPU has",)


def twice(x_N: Any) -> Any:
    return x_N + x_N


def total(x_N: Any) -> Any:
    result = 0.0
    for x in inner(x_N):
        result += x
    return result


inner: Any = None


def make_scaled(factor: float) -> Any:
    def scaled(x_N: Any) -> Any:
        return x_N * factor

    return scaled


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    made = Recording()
    monkeypatch.setattr(compiling, "recording", made)
    return made


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """A folder with an empty store for levels `best` and `plain`."""
    for level in ("best", "plain"):
        write_store(tmp_path / f"{level}.zip", {})
    return tmp_path


def names_of(recording: Recording) -> list[str]:
    return sorted(name.partition(":")[0].rpartition(".")[2] for name in recording.kernels())


def edit_manifest(path: Path, **changes: Any) -> None:
    manifest = KernelStore(path).manifest | changes
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("manifest.json", json.dumps(manifest))


def test_a_kernel_from_a_store_is_not_compiled(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_N = np.arange(3.0)
    njit(nogil=True, cache=True)(twice)(x_N)
    write_store(tmp_path / "level.zip", recording.kernels())

    monkeypatch.setattr(compiling, "recording", None)
    monkeypatch.setattr(compiling, "installed_store", lambda: Choice(KernelStore(tmp_path / "level.zip"), "level"))
    kernel = njit(nogil=True, cache=True)(twice)
    with event.install_recorder("numba:compile") as recorder:
        assert kernel(x_N).tolist() == [0, 2, 4]
    assert not recorder.buffer


def test_what_only_kernels_call_is_part_of_these_and_not_stored(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_N = np.arange(3.0)
    monkeypatch.setitem(globals(), "inner", njit(cache=True)(twice))
    njit(cache=True)(total)(x_N)
    assert names_of(recording) == ["total"]
    # though compiled before, it is stored once Python calls it
    inner(x_N)
    inner(x_N)
    assert names_of(recording) == ["total", "twice"]


def test_a_users_own_kernels_are_not_touched() -> None:
    own = numba.njit(cache=True)(twice)
    assert type(own._cache) is compiling.FunctionCache


def test_names_tell_code_closures_options_and_types_apart() -> None:
    float64, float32 = ((typeof(np.zeros(1, dtype)),) for dtype in (np.float64, np.float32))
    names = {
        entry_name(function, options, types)
        for function in (twice, make_scaled(2.0), make_scaled(3.0), make_scaled(3))
        for options in ({}, {"fastmath": True}, {"fastmath": {"nsz", "contract"}}, {"nogil": True, "inline": "always"})
        for types in (float64, float32)
    }
    assert len(names) == 32
    assert entry_name(make_scaled(2.0), {"fastmath": {"contract", "nsz"}}, float64) in names
    assert entry_name(make_scaled(2.0), {"inline": "always", "nogil": True}, float64) in names


def test_a_kernel_from_a_store_is_not_used_with_other_options(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_N = np.arange(3.0)
    njit(nogil=True, cache=True)(twice)(x_N)
    write_store(tmp_path / "level.zip", recording.kernels())

    monkeypatch.setattr(compiling, "recording", None)
    monkeypatch.setattr(compiling, "installed_store", lambda: Choice(KernelStore(tmp_path / "level.zip"), "level"))
    monkeypatch.setattr(compiling, "FunctionCache", lambda function: NullCache())
    with event.install_recorder("numba:compile") as recorder:
        njit(nogil=True, cache=True, fastmath=True)(twice)(x_N)
    assert recorder.buffer


def test_a_closure_over_what_has_no_lasting_name_is_refused() -> None:
    with pytest.raises(TypeError, match="has no name that holds on another machine"):
        entry_name(make_scaled(object()), {}, ())  # type: ignore[arg-type]


def test_the_best_level_that_this_cpu_has_is_chosen(stores: Path) -> None:
    assert choose(stores, {"best": NOTHING, "plain": NOTHING}).cpu == "best"
    assert choose(stores, {"best": IMPOSSIBLE, "plain": NOTHING}).cpu == "plain"
    refused = choose(stores, {"best": IMPOSSIBLE})
    assert refused.store is None
    assert "best: this CPU lacks a feature that no CPU has" in refused.text
    assert missing_features(IMPOSSIBLE) == [*IMPOSSIBLE]


def test_without_stores_the_reason_says_so(tmp_path: Path) -> None:
    assert choose(tmp_path / "none", {"best": NOTHING}).reason == kernel_store.NO_STORES


def test_a_store_of_other_sources_is_refused(stores: Path) -> None:
    edit_manifest(stores / "best.zip", sources="another digest")
    assert choose(stores, {"best": NOTHING}).text == "compiled here when first used: best: the sources were changed"


@pytest.mark.parametrize("name", ["Numba", "llvmlite", "NumPy", "Python", "platform"])
def test_a_store_made_with_another_version_is_refused(stores: Path, name: str) -> None:
    edit_manifest(stores / "best.zip", built_with=kernel_store.built_with() | {name: "another"})
    assert f"best: made with {name} another, here is " in choose(stores, {"best": NOTHING}).reason


def test_a_damaged_store_is_refused(stores: Path) -> None:
    (stores / "best.zip").write_bytes(b"damaged")
    assert choose(stores, {"best": NOTHING, "plain": NOTHING}).cpu == "plain"
    assert "File is not a zip file" in choose(stores, {"best": NOTHING}).reason


def test_an_option_that_changes_code_keeps_stores_away(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", 1)
    assert choose(stores, {"best": NOTHING}).reason == "NUMBA_BOUNDSCHECK is set"


def test_equal_kernels_make_an_equal_file(tmp_path: Path) -> None:
    for name, kernels in (("a", {"x": b"1", "y": b"2"}), ("b", {"y": b"2", "x": b"1"})):
        write_store(tmp_path / name, kernels)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert len(KernelStore(tmp_path / "a")) == 2


def test_every_kernel_is_compiled_by_our_njit() -> None:
    """One that Numba's own decorator compiles would not be in a wheel."""
    for folder in ("kernels", "stream", "embeddings", "app"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != ROOT / "kernels" / "njit.py":
                text = path.read_text()
                assert "from numba import njit" not in text, path
                assert "numba.njit(" not in text, path
                assert "numba.njit\n" not in text, path


def test_a_damaged_store_is_refused_and_a_damaged_kernel_is_compiled(tmp_path: Path) -> None:
    path = tmp_path / "best.zip"
    write_store(path, {"kernel": bytes(range(256)) * 8})
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        places = {one.filename: one.header_offset for one in file.infolist()}
    for name, is_chosen in (("kernel", True), (MANIFEST, False)):
        at = places[name] + 30 + len(name) + 4  # in the middle of its bytes
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        choice = choose(tmp_path, {"best": NOTHING})
        assert (choice.store is not None) is is_chosen
        if choice.store is not None:
            assert choice.store.get("kernel") is None
        else:
            assert "it is damaged" in choice.reason
    path.write_bytes(whole)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(MANIFEST, "{}")
    assert "it is damaged" in choose(tmp_path, {"best": NOTHING}).reason


def test_a_forked_process_opens_the_store_itself(monkeypatch: pytest.MonkeyPatch, stores: Path) -> None:
    monkeypatch.setattr(kernel_store, "FOLDER", stores)
    monkeypatch.setattr(kernel_store, "level_features", lambda: {"best": NOTHING})
    installed_store.cache_clear()
    try:
        before = installed_store().store
        assert before is not None
        child = os.fork()
        if not child:
            os._exit(0 if installed_store().store is not before else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert installed_store().store is before
    finally:
        installed_store.cache_clear()


def test_a_kernel_closes_over_no_array_and_no_closure() -> None:
    def of(value: Any) -> Any:
        def kernel(x: Any) -> Any:
            return x + value

        return kernel

    entry_name(of(2.0), {}, ())
    for value in (np.zeros(2000), make_scaled(2.0)):
        with pytest.raises(TypeError, match="a kernel closes over"):
            entry_name(of(value), {}, ())
