"""`springtide forget --key user_id=123`: an order to the trainer."""

import argparse

SILENT_MS = 5_000

HELP = "forget ids: gone from the model and from every follower"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key", action="append", required=True, metavar="FEATURE=ID", help="may be given several times"
    )


def run(arguments: argparse.Namespace) -> int:
    import time

    from app.config import load_outline
    from app.errors import UserError
    from app.serving.orders import put_order
    from app.versions.status import read_status

    outline = load_outline(arguments.config)
    keys = []
    for key in arguments.key:
        feature, equals, value = key.partition("=")
        if not equals:
            raise UserError(f"--key {key}: write FEATURE=ID, such as user_id=123")
        if feature not in outline.schema.features:
            raise UserError(f"--key {key}: no feature {feature!r}, only {', '.join(outline.schema.features)}")
        keys.append({"feature": feature, "id": value})
    status = read_status(outline.log.path)
    if status is None:
        raise UserError(f"there is no log in {outline.log.path} yet: nothing was learned, so nothing can be forgotten")
    order = put_order(outline.log.path, "forget", {"keys": keys})
    is_running = not status.get("clean_end") and time.time() * 1000 - status.get("updated_ms", 0) < SILENT_MS
    when = "the trainer forgets with its next version" if is_running else "no trainer runs: the next one will forget"
    print(f"order {order}: {len(keys)} {'key' if len(keys) == 1 else 'keys'}; {when}")
    return 0
