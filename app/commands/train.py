"""`springtide train`: learns from the stream and writes the log."""

import argparse
import json
import sys
from contextlib import nullcontext

# Kafka's answer passes three threads: each gets its turn beside the learning one after this, not after 5 ms
THREAD_SWITCH_SECONDS = 0.0005
HELP = "learn from the stream and write versions to the log"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--until-end",
        action="store_true",
        help="learn up to where the topic ends now, print the final status as JSON, end",
    )
    parser.add_argument(
        "--take-over", action="store_true", help="start although another trainer of this log seems to live"
    )
    parser.add_argument("--no-compact", action="store_true", help="leave new bases to `springtide compact`")
    parser.add_argument(
        "--from-offset",
        action="append",
        default=[],
        metavar="PLACE",
        help="begin at earliest, latest, or TOPIC/PARTITION=OFFSET (may be given for several partitions)",
    )
    parser.add_argument("--from-timestamp", metavar="TIME", help="begin at this record time: ISO, or milliseconds")


def run(arguments: argparse.Namespace) -> int:
    from app.processes.signals import exit_on_signals
    from app.processes.tuning import tune_process

    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    exit_on_signals()  # before the long imports; the trainer has handlers of its own once it runs
    tune_process()
    from app.config.load import load_config, load_light_config
    from app.training.input.start_position import StartPosition

    start = StartPosition.parse(arguments.from_offset, arguments.from_timestamp)
    outline = load_light_config(arguments.config)
    if outline.source.uses_embedded_broker:
        outline.source.kafka_config()  # told at once: nobody else will start the embedded broker
    from app.processes.compactor_supervisor import CompactorSupervisor
    from app.training.trainer import Trainer

    config = load_config(arguments.config)
    trainer = Trainer(config, until_end=arguments.until_end, take_over=arguments.take_over, start=start)
    with nullcontext() if arguments.no_compact else CompactorSupervisor(config):
        status = trainer.run()
    if arguments.until_end:
        print(json.dumps(status), flush=True)
    return 0
