"""Writes a proposal as a commented TOML file, and tries it: it loads, and the sampled rows decode."""

import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from springtide.app.config.document import format_toml_key, format_toml_string
from springtide.app.config.load import load_config
from springtide.app.tools.init.join_proposal import JoinProposal
from springtide.app.tools.init.proposal import Proposal
from springtide.app.tools.init.sampled_rows import SampledRows
from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.positions import Partition
from springtide_client.system.clock import wall_ms

COLUMN = 32  # where comments begin


def format_proposal(
    proposal: Proposal,
    sample: SampledRows,
    *,
    name: str,
    topic: str,
    bootstrap_servers: str | None,
    written_to: str,
    join: JoinProposal | None = None,
    events: Sequence[SampledRows] = (),
) -> str:
    """Return the file; `written_to` is its own name. `join`: made of the rows of `events` too."""
    rows = " and of ".join(_rows_of(each) for each in (sample, *events))
    lines = [f"# Proposed from {rows}. Read it through, change what is not right, then:"]
    if join is None and not sample.origin.startswith("topic "):
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
    if join is not None:
        lines += _join_lines(join)
    lines += _left_out("LEAK, left out: known only with the label", proposal.leaks)
    lines += _left_out("left out", proposal.left_out)
    if proposal.leaks or proposal.left_out:
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _rows_of(sample: SampledRows) -> str:
    return f"{'all' if sample.is_whole else 'the first'} {len(sample.rows):,} rows of {one_line(sample.origin)}"


def _join_lines(join: JoinProposal) -> list[str]:
    """The sections of a join, with what was measured."""
    out_of_order = f"records were up to {join.disorder_ms / 1000:.3g} s older than the newest before them"
    lines = [
        "",
        "[join]",
        _line(f"key = [{', '.join(map(format_toml_string, join.key))}]", join.key_comment),
        _line(f"lateness_seconds = {join.lateness_seconds}", out_of_order),
    ]
    if join.score is not None:
        served = "the probability that was served? The status compares it with the label; it is no feature"
        lines.append(_line(f"score = {format_toml_string(join.score)}", served))
    for label in join.labels:
        delays = ", ".join(f"{percent} % {format_ms(ms)}" for percent, ms in label.quantiles_ms.items())
        share = f"{100 * label.window_share:.0f} % of the events come within it: a model is that much older"
        lines += [
            "",
            f"[labels.{format_toml_key(label.name)}]",
            _line(
                f"topic = {format_toml_string(label.topic)}",
                f"{label.num_events:,} events beside the impressions, {100 * label.matched_share:.3g} % have one",
            ),
        ]
        if label.where:
            pairs = ", ".join(f"{format_toml_key(k)} = {format_toml_string(v)}" for k, v in label.where.items())
            lines.append(f"where = {{ {pairs} }}")
        if label.timestamp is not None and label.timestamp != join.timestamp:
            lines.append(f"timestamp = {format_toml_string(label.timestamp)}")
        lines += [
            f"# from the impression to the event: {delays}",
            _line(f"window_seconds = {label.window_seconds}", share),
        ]
        if label.until_seconds > label.window_seconds:
            effect = "99 % come until then: predictions are divided by the share that comes within the window"
            lines.append(_line(f"until_seconds = {label.until_seconds}", effect))
    return lines


def format_ms(ms: int) -> str:
    """Return a duration for people."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if abs(ms) >= 2 * size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms} ms"


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


def try_proposal(text: str, sample: SampledRows, events: Mapping[str, SampledRows] | None = None) -> list[str]:
    """Return a line for each reason why sampled rows would not be learned. UserError if the text does not load.

    `events`: by topic, the rows that are joined.
    """
    with tempfile.TemporaryDirectory(prefix="springtide-init-") as folder:
        path = Path(folder) / "springtide.toml"
        path.write_text(text, encoding="utf-8")
        config = load_config(path, {"log": {"path": f"{folder}/log"}})
    if config.join is None:
        return dead_letter_lines(Decoder(config.schema, config.source), sample)
    key = config.join.config.key
    lines = dead_letter_lines(Decoder(config.schema, config.source, key=key), sample)
    for fields in config.join.events:
        rows = (events or {})[fields.topic]
        lines += [
            f"{rows.origin}: {line}" for line in dead_letter_lines(Decoder(fields.schema, config.source, key=key), rows)
        ]
    return lines


def dead_letter_lines(decoder: Decoder, sample: SampledRows) -> list[str]:
    """Decode the rows as a trainer does, and return a line for each reason of dead letters."""
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
