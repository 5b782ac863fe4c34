"""`springtide train`: learns from the stream and writes the log."""

import argparse
import logging
import os
import sys
import traceback
from contextlib import nullcontext
from typing import TYPE_CHECKING

from springtide.app.commands.command import Report, Subcommand, add_json

if TYPE_CHECKING:
    from springtide.app.training.ranks.ranks import Ranks

# a Kafka response passes through three threads: each gets its turn beside the learning one after this, not after 5 ms
THREAD_SWITCH_SECONDS = 0.0005
MAX_RESTARTS = 10
logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--until-end",
        action="store_true",
        help="learn up to the topic's present end, print the final status, and exit",
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
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="R",
        help="learn one model with so many processes on this machine, started by torchrun's launcher",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        metavar="N",
        help=f"with --ranks: how often all ranks are started again after one has died (default: {MAX_RESTARTS})",
    )
    parser.add_argument("--from-timestamp", metavar="TIME", help="start at this record time: ISO, or milliseconds")
    add_json(parser, default=not sys.stdout.isatty())


def run(arguments: argparse.Namespace) -> Report | int:
    from springtide.app.processes.signals import exit_on_signals
    from springtide.app.processes.tuning import tune_process
    from springtide_client.system.parent_death import die_with_parent

    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # of torchrun: a rank ends with it, and publishes first
        die_with_parent(os.getppid())
    exit_on_signals()  # during the long imports; the trainer installs its own handlers when it runs
    if not arguments.debug:
        # torch prints dozens of lines of C++ when a rank is lost, and then raises what we tell in one
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    tune_process()
    from springtide.app.config.load import load_config
    from springtide.app.training.start_position import StartPosition

    if arguments.ranks is not None:
        if "RANK" in os.environ:
            from springtide.app.errors import UserError

            raise UserError("torchrun has started this process as one of its ranks: leave out --ranks")
        if arguments.ranks != 1:
            return launch_ranks(arguments)
    if arguments.max_restarts is not None:
        from springtide.app.errors import UserError

        raise UserError("--max-restarts is for --ranks of 2 or more: one process is started again by what started it")
    start = StartPosition.parse(arguments.from_offset, arguments.from_timestamp)
    config = load_config(arguments.config)
    if config.source.uses_embedded_broker:
        config.source.kafka_config()  # fails now if no broker runs: a trainer does not start one
    if config.train.device == "cuda" and "RANK" in os.environ:
        from springtide.app.training.ranks.launch import take_gpu

        take_gpu()
    from springtide.app.processes.supervisor import CompactorSupervisor
    from springtide.app.tools.status_text import status_lines
    from springtide.app.training.ranks.ranks import Ranks
    from springtide.app.training.trainer import Trainer

    uses_gpu = config.train.device == "cuda"
    ranks = Ranks.of_environment(config.cluster.timeout_seconds, "cuda" if uses_gpu else "cpu")
    try:
        trainer = Trainer(
            config,
            until_end=arguments.until_end,
            take_over=arguments.take_over,
            start=start,
            ranks=ranks,
            owns_process=True,
        )
        has_compactor = ranks.is_first and not arguments.no_compact
        with CompactorSupervisor(config.path, config.log.path) if has_compactor else nullcontext():
            status = trainer.run()
    except Exception as error:
        if ranks.num_ranks == 1:
            raise
        return end_rank(error, ranks, debug=arguments.debug)
    if arguments.until_end and ranks.is_first:
        document = status.to_json()
        return Report(document, status_lines(document))
    return 0


def end_rank(error: Exception, ranks: "Ranks", *, debug: bool) -> int:
    """Report a rank's error, unless another rank has reported the same one; return the exit code for the launcher."""
    from springtide.app.processes.stderr import report_error
    from springtide.app.training.ranks.errors import exit_code

    if debug:
        traceback.print_exception(error)
    elif not ranks.is_reported(error):
        report_error(error)
        ranks.mark_reported()
    return exit_code(error)


def launch_ranks(arguments: argparse.Namespace) -> int:
    """Start the ranks, each with the same options; what is wrong with the configuration is reported at once."""
    from springtide.app.config.load import load_config
    from springtide.app.errors import UserError
    from springtide.app.training.ranks.launch import launch
    from springtide.app.training.start_position import StartPosition

    max_restarts = MAX_RESTARTS if arguments.max_restarts is None else arguments.max_restarts
    if arguments.ranks < 1 or max_restarts < 0:
        raise UserError("--ranks must be at least 1, and --max-restarts at least 0")
    StartPosition.parse(arguments.from_offset, arguments.from_timestamp)
    config = load_config(arguments.config)
    if config.source.uses_embedded_broker:
        config.source.kafka_config()
    if config.train.device == "cuda":
        import torch

        from springtide.app.training.ranks.launch import require_gpus

        require_gpus(arguments.ranks, torch.cuda.device_count())
        if config.train.cuda_graphs:
            raise UserError("[train] cuda_graphs = true does not go with several ranks: leave it out")
    options = ["train", "--config", str(config.path)]
    flags = {
        "--until-end": arguments.until_end,
        "--take-over": arguments.take_over,
        "--no-compact": arguments.no_compact,
        "--debug": arguments.debug,
        "--json": arguments.json,
    }
    options += [flag for flag, is_set in flags.items() if is_set]
    for place in arguments.from_offset:
        options += ["--from-offset", place]
    if arguments.from_timestamp is not None:
        options += ["--from-timestamp", arguments.from_timestamp]
    return launch(options, num_ranks=arguments.ranks, max_restarts=max_restarts)


TRAIN = Subcommand("learn from the stream and write versions to the log", add_arguments, run)
