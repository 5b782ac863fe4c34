"""Writes a proposal as a commented TOML file."""

import re
import shlex
from collections.abc import Mapping

from springtide.app.config.toml_text import format_toml_key, format_toml_string
from springtide.app.tools.init.proposal import Proposal
from springtide.app.tools.init.sampled_rows import SampledRows

COLUMN = 32  # where comments begin


def format_proposal(
    proposal: Proposal, sample: SampledRows, *, name: str, topic: str, bootstrap_servers: str | None, written_to: str
) -> str:
    """Return the file; `written_to` is its own name."""
    rows = f"{'all' if sample.is_whole else 'the first'} {len(sample.rows):,} rows of {one_line(sample.origin)}"
    lines = [f"# Proposed from {rows}. Read it through, change what is not right, then:"]
    if not sample.origin.startswith("topic "):
        lines.append(f"#   springtide evaluate {one_line(shlex.quote(sample.origin))} --config {written_to}")
    lines += [
        f"#   springtide run --config {written_to}",
        f"name = {format_toml_string(name)}",
        "",
        "[source]",
    ]
    if bootstrap_servers is None:
        lines.append('# bootstrap_servers = "localhost:9092"   # without it: the embedded broker')
    else:
        lines.append(f"bootstrap_servers = {format_toml_string(bootstrap_servers)}")
    lines += [f"topic = {format_toml_string(topic)}", "", "[schema]", *_targets(proposal)]
    for role in ("categorical", "multi_value", "sequence", "dense"):
        if names := proposal.fields_of(role):
            lines += [
                f"{role} = [",
                *(_line(f"    {format_toml_string(n)},", proposal.comments[n]) for n in names),
                "]",
            ]
    if proposal.share:
        pairs = [f"{format_toml_key(name)} = {format_toml_string(owner)}" for name, owner in proposal.share.items()]
        lines.append(_line(f"share = {{ {', '.join(pairs)} }}", "their elements are ids of that field"))
    lines += _left_out("LEAK, left out: known only with the label", proposal.leaks)
    lines += _left_out("left out", proposal.left_out)
    if proposal.leaks or proposal.left_out:
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def default_name(origin: str) -> str:
    """Return a name for the model that can name a folder."""
    stem = origin.removeprefix("topic ").split("/")[-1].split(".")[0]
    return re.sub(r"[^\w-]+", "-", stem).strip("-") or "model"


def one_line(text: str) -> str:
    """Return text without what ends a comment."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _targets(proposal: Proposal) -> list[str]:
    if len(proposal.labels) == 1:
        label = proposal.labels[0]
        lines = [_line(f"label = {format_toml_string(label)}", proposal.comments[label])]
    else:
        lines = ["labels = ["]
        lines += [_line(f"    {format_toml_string(name)},", proposal.comments[name]) for name in proposal.labels]
        lines.append("]")
    for key, name in (("timestamp", proposal.timestamp), ("weight", proposal.weight)):
        if name is not None:
            lines.append(_line(f"{key} = {format_toml_string(name)}", proposal.comments[name]))
    return lines


def _left_out(title: str, reasons: Mapping[str, str]) -> list[str]:
    if not reasons:
        return []
    return [
        "",
        f"# {title}:",
        *(f"#   {one_line(name) or '(no name)'}: {one_line(why)}" for name, why in reasons.items()),
    ]


def _line(text: str, comment: str) -> str:
    return f"{text:<{COLUMN}}  # {one_line(comment)}" if comment else text
