"""`springtide check`: what keeps a model from running, and what to do about it."""

import argparse

HELP = "check configuration, broker, topic, disk, port and GPU: what is wrong, and how to fix it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.config.load import load_config
    from springtide.app.tools.diagnosis import diagnose

    num_problems = 0
    for state, text in diagnose(load_config(arguments.config)):
        num_problems += state == "problem"
        print(f"{state:<8} {text}")
    return 1 if num_problems else 0
