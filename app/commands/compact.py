"""`springtide compact`: the compactor alone. A trainer runs it as its child."""

import argparse

HELP = "write the log's next bases and delete what they cover (train runs this itself, unless --no-compact)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", metavar="FOLDER", help="the log's folder, instead of [log] path")
    parser.add_argument("--once", action="store_true", help="write one base now and exit")


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.processes.tuning import tune_process

    tune_process()
    from springtide.app.config.load import load_config
    from springtide.app.processes.priority import yield_to_others
    from springtide.app.processes.signals import stop_on_signals
    from springtide.app.version_log.compact.compactor import Compactor

    yield_to_others()
    stopping = stop_on_signals()
    config = load_config(arguments.config, overrides={"log": {"path": arguments.log}})
    compactor = Compactor(config.log, window_samples=config.train.window_samples)
    if arguments.once:
        compactor.compact()
    else:
        compactor.run(stopping)
    return 0
