"""Compiles the kernels by running their callers on little data: a stream is learned from, requests are answered.

python -m springtide.app.tools.compile_kernels                  into Numba's cache
python -m springtide.app.tools.compile_kernels --stores FOLDER  a store for each level of CPU, for a wheel
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from springtide.kernels.kernel_store import KernelStore, level_features, sources_digest, write_store

DIMS = (8, 16, 32, 64)  # of rows: kernels that know theirs are compiled for these; others compile when first used


def learn(dims: Sequence[int]) -> None:
    """Call the kernels that a trainer uses."""
    from springtide.app.training.compile_kernels import compile_kernels
    from springtide.kernels.compile import compile_ops

    compile_ops(dims)
    compile_kernels(dims)
    with TemporaryDirectory() as folder:
        learn_clicks(Path(folder))


def learn_clicks(folder: Path) -> None:
    """Learn, score, publish and write a base, as a trainer does with the demo's clicks."""
    from springtide.app.config.load import load_config
    from springtide.app.tools.demo import demo_config_path
    from springtide.app.tools.evaluate.file_source import FileSource
    from springtide.app.tools.simulated_world import SimulatorConfig
    from springtide.app.tools.simulator import ClickGenerator
    from springtide.app.training.batches import BatchStream
    from springtide.app.training.bootstrap import load_state
    from springtide.app.version_log.compact.merge import compact_log
    from springtide.app.version_log.write.writer import LogWriter
    from springtide.stream.history.input_file import InputFile
    from springtide_client.system.clock import wall_ms

    overrides: dict[str, dict[str, object]] = {
        "log": {"path": str(folder / "log"), "onnx": False},
        "table": {"disk_path": str(folder / "spill"), "device_bytes": "16MiB"},
        "train": {"max_wait_seconds": 0.0},
    }
    config = load_config(demo_config_path(), overrides)
    clicks = folder / "clicks.jsonl"
    clicks.write_bytes(b"\n".join(ClickGenerator(SimulatorConfig(), start_ms=wall_ms()).take_chunk().to_json()))
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    source = FileSource(config.source, config.schema, [InputFile(clicks)])
    batches = BatchStream(config, {}, until_end=True, source=source)
    batches.start()
    while not batches.finished:
        batches.poll(0.0)
        if (batch := batches.take()) is not None:
            state.learn(batch, next_batch=batches.peek(), limit_ms=wall_ms())
    state.detailed_scores()
    for _ in range(2):  # the second says that the first is durable: it becomes a base
        log.append(*state.checkpoint(created_ms=wall_ms(), complete_until_ms=0))
        log.sync()
    compact_log(log.directory, window_samples=config.train.window_samples)
    log.close()
    batches.close()
    state.learner.table.close()


def serve(dims: Sequence[int]) -> None:
    """Call the kernels that decode the stream, and those that servers use."""
    import numpy as np

    from springtide.app.serving.retrieve import warmup as retrieve
    from springtide.app.serving.server import warmup as server
    from springtide.stream.decode.decoder import compile_parsers
    from springtide.stream.kafka.record_batches import parse_batches

    compile_parsers()
    # without any batch; the buffer of a fetch is read-only, which is a type of its own for the compiler
    parse_batches(np.frombuffer(b"-", np.uint8), np.zeros((0, 2), np.int64), 0, np.zeros((6, 0), np.int64))
    server.warm_up()
    retrieve.warm_up()


HALVES: Mapping[str, Callable[[Sequence[int]], None]] = {"learn": learn, "serve": serve}


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, both halves at once where there are two cores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=Path, metavar="FOLDER", help="write stores here, instead of Numba's cache")
    parser.add_argument("--levels", nargs="+", choices=level_features(), default=list(level_features()))
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS)
    parser.add_argument("--half", choices=HALVES, help="only this, in this process")
    parser.add_argument("--record", type=Path, metavar="FILE", help="with --half: a store of what it compiles")
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    if arguments.half is not None:
        run_half(arguments.half, arguments.dims, arguments.record)
    elif arguments.stores is not None:
        make_stores(arguments.stores, arguments.levels, arguments.dims)
    else:
        start_halves([[half, "--dims", *map(str, arguments.dims)] for half in HALVES])
    if arguments.half is None:
        print(f"kernels compiled in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


def run_half(half: str, dims: Sequence[int], store: Path | None) -> None:
    """Compile into Numba's cache, or into a store what Python calls."""
    if store is None:
        HALVES[half](dims)
        return
    from springtide.kernels.njit import record_kernels

    recording = record_kernels()
    HALVES[half](dims)
    write_store(store, recording.kernels())


def make_stores(folder: Path, levels: Sequence[str], dims: Sequence[int]) -> None:
    """Write a store for each of these levels of CPU."""
    digest = sources_digest()
    with TemporaryDirectory() as temporary:
        parts = {(level, half): Path(temporary) / f"{level}-{half}.zip" for level in levels for half in HALVES}
        start_halves(
            [[half, "--record", str(path), "--dims", *map(str, dims)] for (_, half), path in parts.items()],
            [level_environment(level) for level, _ in parts],
        )
        for level in levels:
            kernels: dict[str, bytes] = {}
            for half in HALVES:
                part = KernelStore(parts[level, half])
                if part.manifest["sources"] != digest:
                    raise SystemExit("a source was changed while it was compiled: build again")
                kernels |= part.kernels()
            write_store(folder / f"{level}.zip", kernels)


def level_environment(level: str) -> dict[str, str]:
    """Return the environment in which Numba compiles for a level of CPU instead of for this one."""
    features = ",".join(f"+{name}" for name in level_features()[level])
    return {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": features, "NUMBA_OPT": "3"}


def start_halves(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]] | None = None) -> None:
    """Run this module with these arguments, as many at a time as there are cores; SystemExit if one fails."""

    def run(job: tuple[Sequence[str], Mapping[str, str]]) -> int:
        command, environment = job
        words = [sys.executable, "-m", "springtide.app.tools.compile_kernels", "--half", *command]
        return subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}).returncode

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(run, zip(commands, environments or [{}] * len(commands), strict=True)))
    if any(outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
