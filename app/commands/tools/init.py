"""`springtide init FILE`: proposes a configuration for the rows of a file or a topic."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from springtide.stream.kafka.config import KafkaConfig

HELP = "look at a file or a topic and propose a configuration for it"
SCHEME = "kafka://"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="or kafka://TOPIC, or kafka://HOST:PORT/TOPIC")
    parser.add_argument("--topic", help="look at this topic; the broker is that of the configuration file")
    parser.add_argument("--label", action="append", default=[], metavar="FIELD", help="what to predict (repeatable)")
    parser.add_argument("--rows", type=int, default=50_000, metavar="N", help="look at the first N (default: 50000)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the configuration there, not to stdout")


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.errors import UserError
    from springtide.app.tools.init.proposal import propose
    from springtide.app.tools.init.proposal_text import default_name, format_proposal
    from springtide.app.tools.init.sampled_rows import sample_file, sample_topic
    from springtide.app.tools.init.trial import try_proposal
    from springtide.app.tools.input_file import InputFile
    from springtide.stream.kafka.config import KafkaConfig

    given = arguments.file
    if (given is None) == (arguments.topic is None):
        raise UserError("name one thing to look at: FILE, kafka://HOST:PORT/TOPIC, or --topic TOPIC")
    if arguments.rows < 1:
        raise UserError(f"--rows {arguments.rows}: at least 1")
    path = arguments.write
    if path is not None and path.exists():
        raise UserError(f"--write {path}: the file exists: name another one, or remove it")
    if path is not None and not path.parent.is_dir():
        raise UserError(f"--write {path}: there is no folder {path.parent}")
    bootstrap_servers, topic = None, arguments.topic
    if given is not None and given.startswith(SCHEME):
        servers, _, topic = given.removeprefix(SCHEME).rpartition("/")
        bootstrap_servers = servers or None
    if topic is None:
        sample, topic = sample_file(InputFile(Path(given)), arguments.rows), "clicks"
    elif not topic:
        raise UserError(f"{given} names no topic: write kafka://HOST:PORT/TOPIC")
    else:
        try:
            kafka = (
                _broker_of(arguments.config)
                if bootstrap_servers is None
                else KafkaConfig(bootstrap_servers=bootstrap_servers)
            )
        except ValueError as error:
            raise UserError(str(error)) from None
        bootstrap_servers = kafka.bootstrap_servers
        sample = sample_topic(kafka, topic, arguments.rows)
    proposal = propose(sample, arguments.label)
    text = format_proposal(
        proposal,
        sample,
        name=default_name(sample.origin),
        topic=topic,
        bootstrap_servers=bootstrap_servers,
        written_to="springtide.toml" if path is None else str(path),
    )
    warnings = [f"{name} {leak}: a leak? It is left out" for name, leak in proposal.leaks.items()]
    for line in warnings + try_proposal(text, sample):
        print(f"warning: {line}", file=sys.stderr)
    for line in proposal.notes:
        print(f"note: {line}", file=sys.stderr)
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}: {len(proposal.roles)} features of {sample.origin}")
    return 0


def _broker_of(config_path: str | None) -> "KafkaConfig":
    """Return the broker that the configuration file names; UserError without a file."""
    from springtide.app.config.load import DEFAULT_PATH, load_config
    from springtide.app.errors import UserError

    if config_path is None and not DEFAULT_PATH.exists():
        raise UserError("which broker? Write kafka://HOST:PORT/TOPIC, or name a configuration file with --config")
    return load_config(config_path).source.kafka_config()
