"""`springtide simulate`: made-up clicks into the topic. What `demo` starts as a child."""

import argparse

HELP = "send made-up, drifting clicks into the topic (what demo does)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, metavar="N", help="clicks a second (default: 3000)")
    parser.add_argument("--limit", type=int, metavar="N", help="send at most so many")
    parser.add_argument("--seed", type=int, default=0, help="of the world (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    from app.config.load import load_light_config
    from app.errors import UserError
    from app.processes.signals import stop_on_signals
    from app.tools.simulator.config import SimulatorConfig
    from app.tools.simulator.process import simulate

    outline = load_light_config(arguments.config)
    settings = {"seed": arguments.seed} | ({} if arguments.rate is None else {"rate": arguments.rate})
    try:
        config = SimulatorConfig(**settings)
    except ValueError as error:
        raise UserError(f"--{error}") from None
    stopping = stop_on_signals(grace_seconds=2.0)
    simulate(config, outline.source, outline.log.path, stopping, limit=arguments.limit)
    return 0
