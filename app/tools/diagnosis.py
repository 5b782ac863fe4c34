"""Finds what keeps a model from running: its configuration, the dense net, broker, topic, disk, port, GPU."""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from app.config.load import Config
from app.errors import UserError
from app.models.interface import ModelSpec
from app.models.registry import build_model
from stream.broker.discovery import find_broker
from stream.broker.embedded import find_broker_binary
from stream.errors import EmbeddedBrokerError
from stream.kafka.check import check_kafka

MIN_FREE_BYTES = 1 << 30


class Diagnosis(NamedTuple):
    """One thing that was checked; a problem's text says what to do about it."""

    state: Literal["ok", "note", "problem"]
    text: str


def diagnose(config: Config) -> Iterator[Diagnosis]:
    """Check everything in turn; UserError where the model cannot be built."""
    yield Diagnosis("ok", f"configuration: {config.path}, {len(config.schema.features)} id features")
    yield from check_model(config)
    yield from check_broker(config)
    yield from check_disk(config)
    yield from check_port_and_gpu(config)


def check_model(config: Config) -> Iterator[Diagnosis]:
    """Build the dense net."""
    try:
        build_model(config.model, ModelSpec.of(config.schema, config.table.dim), seed=0)
    except ValueError as error:
        raise UserError(f"[model] {error}") from None
    yield Diagnosis("ok", f"model: {config.model.name}")


def check_broker(config: Config) -> Iterator[Diagnosis]:
    """Look for the broker and the topic."""
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
    problems = check_kafka(address, source.topic, options=source.kafka)
    for problem in problems:
        yield Diagnosis("problem", f"{problem.what}: {problem.fix}")
    if not problems:
        yield Diagnosis("ok", f"broker: {address}, topic {source.topic!r}")


def check_disk(config: Config) -> Iterator[Diagnosis]:
    """Look whether log and spill can be written, and have space."""
    folders = {"log": Path(config.log.path), "spill": Path(config.table.disk_path or "var")}
    for name, folder in folders.items():
        existing = folder.absolute()
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            yield Diagnosis("problem", f"{name}: {existing} cannot be written: change its owner, or set another path")
            continue
        free_bytes = shutil.disk_usage(existing).free
        text = f"{name}: {folder}, {free_bytes / 2**30:.1f} GiB free"
        if free_bytes >= MIN_FREE_BYTES:
            yield Diagnosis("ok", text)
        else:
            yield Diagnosis("problem", f"{text}: free some space, or set another path")


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
