"""`springtide forget --key user_id=123`: an order to the trainer."""

import argparse

HELP = "forget ids: gone from the model and from every follower (not in this release)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key", action="append", required=True, metavar="FEATURE=ID", help="may be given several times"
    )


def run(arguments: argparse.Namespace) -> int:
    from app.config import load_outline
    from app.errors import UserError

    outline = load_outline(arguments.config)
    for key in arguments.key:
        feature, equals, _ = key.partition("=")
        if not equals:
            raise UserError(f"--key {key}: write FEATURE=ID, such as user_id=123")
        if feature not in outline.schema.features:
            raise UserError(f"--key {key}: no feature {feature!r}, only {', '.join(outline.schema.features)}")
    raise UserError("forget is not in this release: no trainer takes the order yet, so nothing was forgotten")
