"""Writes a proposal as a commented TOML file, and tries it: it loads, and the sampled rows decode."""

import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from springtide.app.config.document import format_toml_key, format_toml_string
from springtide.app.config.load import Config, load_config
from springtide.app.tools.init.proposal import Proposal
from springtide.app.tools.init.sampled_rows import SampledRows
from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.positions import Partition
from springtide_client.system.clock import wall_ms

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


def try_proposal(text: str, sample: SampledRows) -> list[str]:
    """Return a line for each reason why sampled rows would not be learned. UserError if the text does not load."""
    with tempfile.TemporaryDirectory(prefix="springtide-init-") as folder:
        path = Path(folder) / "springtide.toml"
        path.write_text(text, encoding="utf-8")
        config = load_config(path, {"log": {"path": f"{folder}/log"}})
    return dead_letter_lines(config, sample)


def dead_letter_lines(config: Config, sample: SampledRows) -> list[str]:
    """Decode the rows as a trainer does, and return a line for each reason of dead letters."""
    decoder = Decoder(config.schema, config.source)
    now_ms = wall_ms()
    raw = RawRecords.from_messages(Partition("", 0), sample.messages, record_ms=[now_ms] * len(sample.messages))
    letters = decoder.decode(raw, now_ms).dead_letters
    fields = {*sample.columns}
    # details begin with the field, if one is to blame: mistakes in two fields are two lines
    causes = [(letter.reason, next(iter({letter.detail.split(": ")[0]} & fields), "")) for letter in letters]
    first = {cause: letter.detail for cause, letter in zip(reversed(causes), reversed(letters), strict=True)}
    total = len(sample.messages) + sample.num_broken
    lines = [
        f"{num:,} of {total:,} rows cannot be learned: {cause[0]}, such as: {first[cause]}"
        for cause, num in Counter(causes).most_common()
    ]
    if sample.num_broken:
        why = "they are not JSON objects" if sample.has_types else "they have more cells than columns"
        lines.append(f"{sample.num_broken:,} of {total:,} rows cannot be learned: {why}")
    return lines
