"""`springtide simulate`: simulated clicks into the topic. `demo` runs it as a child."""

import argparse

HELP = "send simulated clicks with drifting preferences into the topic (as demo does)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, metavar="N", help="clicks per second (default: 3000)")
    parser.add_argument("--limit", type=int, metavar="N", help="send at most N clicks")
    parser.add_argument("--seed", type=int, default=0, help="of the simulated world (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.config.load import load_config
    from springtide.app.errors import UserError
    from springtide.app.processes.signals import stop_on_signals
    from springtide.app.tools.simulated_world import SimulatorConfig
    from springtide.app.tools.simulator import simulate

    config = load_config(arguments.config)
    settings = {"seed": arguments.seed} | ({} if arguments.rate is None else {"rate": arguments.rate})
    try:
        simulator_config = SimulatorConfig(**settings)
    except ValueError as error:
        raise UserError(f"--{error}") from None
    stopping = stop_on_signals(grace_seconds=2.0)
    simulate(simulator_config, config.source, config.log.path, stopping, limit=arguments.limit)
    return 0
