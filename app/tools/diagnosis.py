"""Finds what keeps a model from running: its configuration, the dense net, broker, topic, disk, port, GPU."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import torch
from torch.distributed import is_nccl_available

from springtide.app.config.load import Config
from springtide.app.errors import user_errors
from springtide.app.models.export.torch_export import export_model
from springtide.app.models.losses.config import AGAINST_WIDE
from springtide.app.models.registry import build_model
from springtide.app.serving.config import ServeConfig
from springtide.app.tools.join_diagnosis import check_joined_topic
from springtide.app.tools.memory_diagnosis import check_delay
from springtide.app.training.bootstrap import model_spec, new_model, signature_of, with_wide_columns
from springtide.app.training.device import resolve_device
from springtide.app.version_log.change.plan import ModelSignature, plan_change
from springtide.app.version_log.compact.retention import kept_size
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.disk_budget import BASE_SHARE, LEAST_ROWS_SHARE, DiskBudget, base_row_bytes
from springtide.embeddings.collection import check_device_bytes
from springtide.embeddings.errors import SpillError
from springtide.embeddings.tiers.rocksdb.spill import has_rocksdb, unknown_format
from springtide.kernels.backend import backend
from springtide.kernels.kernel_store import NO_STORES, installed_store
from springtide.stream.broker.embedded import find_broker, find_broker_binary
from springtide.stream.errors import EmbeddedBrokerError, StreamError
from springtide.stream.history.seam import format_ms, topic_coverage
from springtide.stream.history.times import first_event_ms, last_event_ms, ordered_files
from springtide.stream.kafka.admin import kafka_problem
from springtide.stream.positions import HISTORY, positions_from_meta
from springtide_client.errors import LogError, PartError
from springtide_client.log.directory import LogDirectory
from springtide_client.parts.part_servers import PartServers


def check_cluster(config: Config) -> tuple[Literal["ok", "note"], str]:
    """Say how several ranks would exchange what they learn, or what keeps them from it."""
    cluster = config.cluster
    start = "several ranks (`springtide train --ranks R`)"
    if config.train.device == "cuda":
        num_gpus = torch.cuda.device_count()
        if config.train.cuda_graphs:
            return "note", "cluster: only one rank can learn so, as [train] cuda_graphs does not go with several"
        if num_gpus < 2 or not is_nccl_available():
            return "note", (
                f"cluster: several ranks need a GPU each and NCCL: torch sees {num_gpus} here, and "
                f'{"has" if is_nccl_available() else "lacks"} NCCL; with [train] device = "cpu" they learn on the CPU'
            )
        start = f"up to {num_gpus} ranks (`springtide train --ranks R`), one for each GPU,"
    formats = {"rows": cluster.rows, "gradients": cluster.gradients, "those of the net": cluster.dense_gradients}
    text = ", ".join(f"{name} as {kind}" for name, kind in formats.items())
    return (
        "ok",
        f"cluster: {start} would exchange {text}; one that is silent for {cluster.timeout_seconds:g} s counts as dead",
    )


TIMEOUT_SECONDS = 2.0


def check_parts(config: ServeConfig) -> Iterator[tuple[Literal["ok", "note", "problem"], str]]:
    """Ask the server of each part which range it holds."""
    if not config.parts:
        if config.range is not None:
            hint = "set [serve] parts to the addresses of all servers if it is to predict, or to answer for other keys"
            yield "note", f"part: this server looks up the rows of {config.range}, and nothing else: {hint}"
        return
    servers = PartServers(config.parts, timeout_seconds=TIMEOUT_SECONDS)
    for index, url in enumerate(servers.urls):
        wanted = str(servers.range_of(index))
        name = f"part: {wanted} at {url}"
        try:
            response = servers.get(index, "/healthz", {})
            found = json.loads(response.body).get("range", "1/1")
        except PartError as error:
            yield "note", f"{name}: {error}"
        except (ValueError, AttributeError):
            yield "problem", f"{name} is not a Springtide server: it responded {response.status} to /healthz"
        else:
            if found == wanted:
                yield "ok", f"{name} answers"
            else:
                held = "no rows" if found is None else f"part {found}"
                yield "problem", f'{name} holds {held}: start it with range = "{wanted}", or correct [serve] parts'
    servers.close()


MIN_FREE_BYTES = 1 << 30
NET_COPIES, PROGRAM_BYTES = 5, 200_000  # parameters, two moments, two exported programs; their code
KEYS = {"log": "[log] path", "spill": "[table] disk_path"}
SLOT_BYTES = 20  # of the index, for a row in memory


class Diagnosis(NamedTuple):
    """One thing that was checked; a problem's text says what to do about it."""

    state: Literal["ok", "note", "problem"]
    text: str


def diagnose(config: Config) -> Iterator[Diagnosis]:
    """Check everything in turn; UserError where the model cannot be built."""
    yield Diagnosis("ok", f"configuration: {config.path}, {len(config.schema.features)} id features")
    yield from check_model(config)
    yield check_kernels()
    yield from check_broker(config)
    yield from check_history(config)
    yield from check_disk(config)
    yield from check_spill_format()
    yield from check_memory(config)
    yield check_disk_caps(config)
    yield from check_kept_versions(config.log)
    yield Diagnosis(*check_cluster(config))
    yield from check_port_and_gpu(config)
    for state, text in check_parts(config.serve):
        yield Diagnosis(state, text)


def check_kernels() -> Diagnosis:
    """Say where the compiled kernels come from."""
    choice = installed_store()
    is_as_installed = choice.store is not None or choice.reason == NO_STORES
    return Diagnosis("ok" if is_as_installed else "note", f"kernels: {choice.text}")


def check_model(config: Config) -> Iterator[Diagnosis]:
    """Build the dense net; if a log is there, say what a start keeps of it."""
    model = new_model(config)
    with user_errors("[model] "):
        export_model(model, model_spec(config))
    yield Diagnosis("ok", f"model: {config.model.name}")
    yield from check_losses(config)
    try:
        base = LogDirectory(config.log.path).open_base()
    except LogError as error:
        yield Diagnosis("problem", f"log: {error}")
        return
    if base is not None and (plan := plan_change(ModelSignature.of(base), signature_of(config, model))):
        yield Diagnosis("note", f"the log was written with another {', '.join(plan.changes)}; the next start")
        for line in plan.lines():
            yield Diagnosis("note", f"  {line}")


def check_losses(config: Config) -> Iterator[Diagnosis]:
    """Note labels whose net and wide part minimize what does not go together."""
    for label, loss in zip(config.schema.labels, config.losses, strict=True):
        if config.model.has_wide_part and loss.name in AGAINST_WIDE:
            yield Diagnosis(
                "note",
                f"label {label!r}: the wide part learns the logistic loss, and loss = {loss.name!r} draws the net away "
                'from it: set [model] wide = false, or loss = "bce"',
            )


def check_broker(config: Config) -> Iterator[Diagnosis]:
    """Look for the broker and the topics."""
    source = config.source
    address = source.bootstrap_servers
    if address is None:
        try:
            find_broker_binary()
        except EmbeddedBrokerError as error:
            yield Diagnosis("problem", str(error))
            return
        broker = find_broker(config.log.path)
        if broker is None:
            yield Diagnosis(
                "note", "the embedded broker does not run: `springtide run` (or `springtide broker`) starts it"
            )
            return
        address = broker.address
    joined = () if config.join is None else (fields.topic for fields in config.join.events)
    for topic in dict.fromkeys((source.topic, *joined)):
        if problem := kafka_problem(address, topic, options=source.kafka):
            yield Diagnosis("problem", problem)
        else:
            yield Diagnosis("ok", f"broker: {address}, topic {topic!r}")
            if config.join is not None:
                yield from starmap(Diagnosis, check_joined_topic(config, config.join, address, topic))
            yield from starmap(Diagnosis, check_delay(config, address))


def check_history(config: Config) -> Iterator[Diagnosis]:
    """Say which files are learned first, what times they are of, and whether the topic goes on where they end."""
    history, schema = config.history, config.schema
    if history.path is None:
        return
    try:
        base = LogDirectory(config.log.path).open_base()
        at = None if base is None else positions_from_meta(base.manifest.meta.positions).get(HISTORY)
        if at is not None and at.is_finished:
            yield Diagnosis("ok", "history: it is learned, [history] may be removed")
            return
        files = ordered_files(history, schema)
        begin_ms, end_ms = first_event_ms(files[0], schema), last_event_ms(files, schema)
    except (LogError, StreamError) as error:
        yield Diagnosis("problem", f"history: {error}")
        return
    num_bytes = _mib(sum(file.size for file in files))
    times = f"from {format_ms(begin_ms)} to {format_ms(end_ms)}" if end_ms else "without event times"
    yield Diagnosis("ok", f"history: {len(files)} files, {num_bytes}, {times}")
    if end_ms and begin_ms > end_ms:
        yield Diagnosis("note", f'history: {files[0].name} begins after {files[-1].name} ends: set order = "time"')
    try:
        coverage = topic_coverage(config.source, schema, files)
    except StreamError as error:
        yield Diagnosis("note", f"history: where the topic goes on cannot be said: {error}")
        return
    if history.offsets or coverage is None:
        return
    until_ms = history.until_ms or coverage.until_ms
    if gap := coverage.gap(until_ms):
        yield Diagnosis("problem", f"history: {gap}")
    else:
        yield Diagnosis("ok", f"history: the topic goes on at {format_ms(until_ms)} in a new log")


def check_disk(config: Config) -> Iterator[Diagnosis]:
    """Look whether log and spill can be written, and have space."""
    folders = {"log": Path(config.log.path), "spill": Path(config.table.disk_path or "var")}
    for name, folder in folders.items():
        existing = folder.absolute()
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            remedy = f"change its owner, or set another {KEYS[name]}"
            yield Diagnosis("problem", f"{name}: {existing} cannot be written: {remedy}")
            continue
        total_bytes, _, free_bytes = shutil.disk_usage(existing)
        if not total_bytes:  # a file system of the kernel, such as /proc
            yield Diagnosis("problem", f"{name}: {folder} is not on a disk: set another {KEYS[name]}")
            continue
        text = f"{name}: {folder}, {free_bytes / 2**30:.1f} GiB free"
        if free_bytes >= MIN_FREE_BYTES:
            yield Diagnosis("ok", text)
        else:
            yield Diagnosis("problem", f"{text}: free some space, or set another {KEYS[name]}")


def check_spill_format() -> Iterator[Diagnosis]:
    """Look for RocksDB, and whether it writes table files whose format is read here."""
    if not has_rocksdb():
        yield Diagnosis(
            "note",
            "spill: the disk tier is missing, as this Python has no rocksdb-py (its wheels are for Linux on x86-64 and "
            "macOS on Apple silicon): memory is the last tier. A row that [table] device_bytes has no room for is "
            "deleted, here and for every reader; if its id comes again, it gets a new row: give device_bytes room for "
            "all rows",
        )
        return
    with TemporaryDirectory() as folder:
        try:
            unknown = unknown_format(Path(folder) / "spill")
        except SpillError as error:
            yield Diagnosis("problem", f"spill: {error}")
            return
    if unknown:
        how = "rows on disk are read through RocksDB, more slowly: install the rocksdb-py of constraints.txt"
        yield Diagnosis("note", f"spill: this RocksDB writes a format that is unknown here ({unknown}); {how}")


def check_memory(config: Config) -> Iterator[Diagnosis]:
    """Look whether the rows have any room in memory."""
    try:
        device = resolve_device(config.train)
    except ValueError as error:
        yield Diagnosis("problem", str(error))
        return
    try:
        check_device_bytes(with_wide_columns(config), backend(device.table))
    except ValueError as error:
        yield Diagnosis("problem", f"memory: [table] {error}")


def check_disk_caps(config: Config) -> Diagnosis:
    """Look whether net, rows in memory and bases fit into the bytes that the log may take."""
    budget, table = DiskBudget(config.log.log_bytes), config.table
    half = "[log] log_bytes" if config.log.log_bytes < table.disk_bytes // 2 else "half of [table] disk_bytes"
    net_bytes, row_bytes = _net_bytes(config), base_row_bytes(table.dim, table.layout.state_width)
    room = f"{half} is {_mib(config.log.log_bytes)}, of which a base may take {_mib(budget.max_base_bytes)}"
    if net_bytes > budget.max_base_bytes * (1 - LEAST_ROWS_SHARE):
        needed = _mib(int(net_bytes / BASE_SHARE / (1 - LEAST_ROWS_SHARE)) + 1)
        text = f"disk: {room}, and the net alone takes about {_mib(net_bytes)} of it: raise it to {needed}"
        return Diagnosis("problem", text)
    num_rows = (budget.max_base_bytes - net_bytes) // row_bytes
    in_memory = (table.device_bytes + table.host_bytes) // (row_bytes + SLOT_BYTES)
    text = f"disk: {room}: about {num_rows:,} rows; beyond them the rows seen longest ago are deleted"
    if in_memory > num_rows:
        return Diagnosis("note", f"{text}. Memory holds about {in_memory:,}: raise disk_bytes, or lower device_bytes")
    return Diagnosis("ok", text)


def _net_bytes(config: Config) -> int:
    """Bytes of a base beside its rows: parameters and their optimizer's state, and the exported programs."""
    model = build_model(config.model, model_spec(config), seed=0)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return NET_COPIES * 4 * num_parameters + PROGRAM_BYTES


def check_kept_versions(log: LogConfig) -> Iterator[Diagnosis]:
    """Compare log_bytes with what the bases take that the configuration and the pins want kept."""
    size = kept_size(log)
    if size is None:
        return
    text = f"log: {size.num_wanted} bases of {size.base_bytes / 2**20:,.1f} MiB are kept with keep_bases, keep and pins"
    if size.num_fitting >= size.num_wanted:
        yield Diagnosis("ok", f"{text}; log_bytes has room for {size.num_fitting}")
    elif size.num_fitting >= size.num_required:
        went = "the oldest that keep names are deleted first"
        yield Diagnosis("note", f"{text}, but log_bytes has room for {size.num_fitting}: {went}; raise log_bytes")
    else:
        remedy = "raise [log] log_bytes (at most half of [table] disk_bytes) or unpin versions"
        required = f"{size.num_required} of them are needed, {len(size.pins)} by pins"
        yield Diagnosis("problem", f"{text}, log_bytes has room for {size.num_fitting}, {required}: {remedy}")


def check_port_and_gpu(config: Config) -> Iterator[Diagnosis]:
    """Look whether the server's port is free, and for a GPU."""
    address = f"{config.serve.host}:{config.serve.port}"
    try:
        socket.create_server((config.serve.host, config.serve.port)).close()
        yield Diagnosis("ok", f"port: {address} is free")
    except OSError as error:
        yield Diagnosis("note", f"port: {address}: {error.strerror or error}; fine if that is our own server")
    if torch.cuda.is_available():
        yield Diagnosis("note", f'GPU: {torch.cuda.get_device_name(0)}; [train] device = "cuda" trains on it')
    else:
        yield Diagnosis("note", "GPU: none; everything runs on the CPU")


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
