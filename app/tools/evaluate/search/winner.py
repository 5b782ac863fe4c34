"""What a search says of its winner, and the configuration that it writes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from springtide.app.config.assignments import merge_document
from springtide.app.config.load import DEFAULT_PATH, read_document
from springtide.app.config.toml_text import format_toml
from springtide.app.tools.evaluate.comparison import difference_text
from springtide.app.tools.evaluate.report import score_text, table
from springtide.app.tools.evaluate.search.search import SearchResult
from springtide.app.tools.evaluate.search.space import describe_change

NUM_SHOWN = 5


def search_lines(found: SearchResult) -> list[str]:
    """Return the result of a search for people."""
    lines = [
        f"{sum(len(rung.trials) for rung in found.rungs):,} runs over {found.num_rows:,} rows in {found.seconds:.1f} s",
        f"winner: {describe_change(found.change)}",
        "",
    ]
    if found.change:
        lines += table({"as it is": found.given.first, "winner": found.winner.first}, score_text)
        lines.append(difference_text("winner minus as it is, all rows", found.whole))
        lines.append(difference_text("on the newest fifth, which chose nothing", found.unseen))
        lines.append(verdict(found))
    else:
        lines += table({"as it is": found.given.first}, score_text)
        lines.append("the settings as they are were not beaten")
    last = found.rungs[-1]
    lines += ["", f"the best on {last.rows:,} rows:"]
    for change, trial in last.trials[:NUM_SHOWN]:
        lines.append(f"  logloss {trial.loss:.5f}  {describe_change(change)}")
    failed = [(change, trial.error) for rung in found.rungs for change, trial in rung.trials if trial.error]
    return [*lines, *(f"failed: {describe_change(change)}: {error}" for change, error in failed)]


def verdict(found: SearchResult) -> str:
    """Return in words whether the winner is better on rows that did not choose it."""
    if found.unseen.is_better:
        return "better by more than twice the standard error"
    return "no difference beyond twice the standard error: more rows may tell"


def search_document(found: SearchResult) -> dict[str, Any]:
    """Return the result of a search for `--json`."""
    return {
        "change": found.change,
        "evaluations": [found.given.document(), found.winner.document()],
        "difference": asdict(found.whole),
        "unseen_difference": asdict(found.unseen),
        "is_better": found.unseen.is_better,
        "rows": found.num_rows,
        "seconds": round(found.seconds, 3),
        "rungs": [
            {
                "rows": rung.rows,
                "trials": [
                    {"change": change, "logloss": trial.loss if not trial.error else None, "auc": trial.auc}
                    for change, trial in rung.trials
                ],
            }
            for rung in found.rungs
        ],
    }


def winner_toml(found: SearchResult, config_path: Path | str | None, assignments: Sequence[Mapping[str, Any]]) -> str:
    """Return the configuration with the winner's settings; comments of the file are lost."""
    path = Path(config_path or DEFAULT_PATH)
    document = merge_document(read_document(path), [*assignments, found.change])
    comments = [
        f"# {path} with {describe_change(found.change)}, found by `springtide evaluate --search`",
        f"# {difference_text('on the newest fifth of the rows', found.unseen)}",
    ]
    return "\n".join(comments) + "\n" + format_toml(document)
