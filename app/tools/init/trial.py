"""Tries a proposal before anybody else does: the configuration loads, and the sampled rows decode."""

import tempfile
from collections import Counter
from pathlib import Path

from springtide.app.config.load import Config, load_config
from springtide.app.tools.init.sampled_rows import SampledRows
from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.positions import Partition
from springtide_client.system.clock import wall_ms


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
