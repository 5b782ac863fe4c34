"""`springtide train`: learns from the stream and writes the log."""

import argparse
import json
import sys
from contextlib import nullcontext

# a Kafka response passes through three threads: each gets its turn beside the learning one after this, not after 5 ms
THREAD_SWITCH_SECONDS = 0.0005
HELP = "learn from the stream and write versions to the log"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--until-end",
        action="store_true",
        help="learn up to the topic's present end, print the final status as JSON, and exit",
    )
    parser.add_argument(
        "--take-over", action="store_true", help="start even if another trainer of this log seems to be alive"
    )
    parser.add_argument("--no-compact", action="store_true", help="start no compactor: run `springtide compact`")
    parser.add_argument(
        "--from-offset",
        action="append",
        default=[],
        metavar="PLACE",
        help="start at earliest, latest, or TOPIC/PARTITION=OFFSET (repeat it for several partitions)",
    )
    parser.add_argument("--from-timestamp", metavar="TIME", help="start at this record time: ISO, or milliseconds")


def run(arguments: argparse.Namespace) -> int:
    from app.processes.signals import exit_on_signals
    from app.processes.tuning import tune_process

    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    exit_on_signals()  # during the long imports; the trainer installs its own handlers when it runs
    tune_process()
    from app.config.load import load_config
    from app.training.input.start_position import StartPosition

    start = StartPosition.parse(arguments.from_offset, arguments.from_timestamp)
    config = load_config(arguments.config)
    if config.source.uses_embedded_broker:
        config.source.kafka_config()  # fails now if no broker runs: a trainer does not start one
    from app.processes.compactor_supervisor import CompactorSupervisor
    from app.training.trainer import Trainer

    trainer = Trainer(config, until_end=arguments.until_end, take_over=arguments.take_over, start=start)
    with nullcontext() if arguments.no_compact else CompactorSupervisor(config.path, config.log.path):
        status = trainer.run()
    if arguments.until_end:
        print(json.dumps(status.to_json()), flush=True)
    return 0
