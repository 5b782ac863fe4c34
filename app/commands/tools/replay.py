"""`springtide replay FILE`: a file's rows into the topic."""

import argparse
from pathlib import Path

HELP = "send a CSV, TSV, JSONL or Parquet file into the topic, in the file's order"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--rate", type=float, metavar="N", help="messages per second (default: as fast as possible)")
    parser.add_argument("--loop", action="store_true", help="start again at the end of the file, forever")
    parser.add_argument("--limit", type=int, metavar="N", help="send at most N messages")
    parser.add_argument("--partitions", type=int, metavar="N", help="of the topic, if it is created (default: 1)")
    parser.add_argument("--key", metavar="COLUMN", help="key the messages by a column, which also picks the partition")
    parser.add_argument("--compression", choices=["gzip", "snappy", "lz4", "zstd"], help="of the messages")


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.config.load import load_config
    from springtide.app.errors import UserError
    from springtide.app.processes.signals import stop_on_signals
    from springtide.app.tools.replay import Replay, ReplayConfig

    config = load_config(arguments.config)
    try:
        replay_config = ReplayConfig(
            path=arguments.file,
            rate=arguments.rate,
            loop=arguments.loop,
            limit=arguments.limit,
            partitions=arguments.partitions,
            key=arguments.key,
            compression=arguments.compression,
        )
    except ValueError as error:
        raise UserError(f"--{error}") from None
    stopping = stop_on_signals(grace_seconds=4.0)
    Replay(replay_config, config.source, log_path=config.log.path).run(stopping)
    return 0
