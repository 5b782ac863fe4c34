"""`springtide check`: what is wrong between here and a running model, and how to mend it."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.config.load import Config

HELP = "look at configuration, broker, topic, disk, port and GPU: what is wrong, and how to mend it"

MIN_FREE_BYTES = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(arguments: argparse.Namespace) -> int:
    from app.config.load import load_config

    config = load_config(arguments.config)
    print(f"ok       configuration: {config.path}, {len(config.schema.features)} id features")
    num_problems = 0
    for state, text in [*check_model(config), *check_broker(config), *check_disk(config), *check_port_and_gpu(config)]:
        num_problems += state == "problem"
        print(f"{state:<8} {text}")
    return 1 if num_problems else 0


def check_model(config: "Config") -> Iterator[tuple[str, str]]:
    """A model that cannot be built."""
    from app.errors import UserError
    from app.models.interface import ModelSpec
    from app.models.registry import build_model

    try:
        build_model(config.model, ModelSpec.of(config.schema, config.table.dim), seed=0)
    except ValueError as error:
        raise UserError(f"[model] {error}") from None
    yield "ok", f"model: {config.model.name}"


def check_broker(config: "Config") -> Iterator[tuple[str, str]]:
    """Whether there is a broker with the topic."""
    from stream.broker.discovery import find_broker
    from stream.broker.embedded import find_broker_binary
    from stream.errors import EmbeddedBrokerError
    from stream.kafka.check import check_kafka

    source = config.source
    address = source.bootstrap_servers
    if address is None:
        try:
            find_broker_binary()
        except EmbeddedBrokerError as error:
            yield "problem", str(error)
            return
        broker = find_broker(config.log.path)
        if broker is None:
            yield "note", "the embedded broker does not run: `springtide run` (or `springtide broker`) starts it"
            return
        address = broker.address
    problems = check_kafka(address, source.topic, options=source.kafka)
    for problem in problems:
        yield "problem", f"{problem.what}: {problem.fix}"
    if not problems:
        yield "ok", f"broker: {address}, topic {source.topic!r}"


def check_disk(config: "Config") -> Iterator[tuple[str, str]]:
    """Whether log and spill can be written, and have room."""
    import os
    import shutil
    from pathlib import Path

    places = {"log": Path(config.log.path), "spill": Path(config.table.disk_path or "var")}
    for name, path in places.items():
        there = path.absolute()
        while not there.exists():
            there = there.parent
        if not there.is_dir() or not os.access(there, os.W_OK):
            yield "problem", f"{name}: {there} cannot be written: change its owner, or set another path"
            continue
        free = shutil.disk_usage(there).free
        state = "ok" if free >= MIN_FREE_BYTES else "problem"
        mend = "" if state == "ok" else ": make room, or set another path"
        yield state, f"{name}: {path}, {free / 2**30:.1f} GiB free{mend}"


def check_port_and_gpu(config: "Config") -> Iterator[tuple[str, str]]:
    """The server's port, and whether there is a GPU."""
    import socket

    import torch

    try:
        socket.create_server((config.serve.host, config.serve.port)).close()
        yield "ok", f"port: {config.serve.host}:{config.serve.port} is free"
    except OSError as error:
        reason = error.strerror or error
        yield "note", f"port: {config.serve.host}:{config.serve.port}: {reason}; fine if that is our own server"
    if torch.cuda.is_available():
        yield (
            "note",
            f'GPU: {torch.cuda.get_device_name(0)} is here; [train] device = "cuda" trains on it',
        )
    else:
        yield "note", "GPU: none; everything runs on the CPU"
