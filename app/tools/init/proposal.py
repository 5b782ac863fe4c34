"""Which role each field gets, and why. What cannot be decided from rows is asked, never guessed silently."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from springtide.app.errors import UserError
from springtide.app.tools.init import name_hints as hints
from springtide.app.tools.init.column_profile import FUTURE_MS, ColumnProfile, odd_rows
from springtide.app.tools.init.leaks import leak_of
from springtide.app.tools.init.sampled_rows import Row, SampledRows
from springtide_client.system.settings import nearest
from springtide_client.targets import EARLIEST_MS

ID_ROLES = ("categorical", "multi_value", "sequence")
FEW_VALUES = 10  # so few whole numbers are rather names than amounts
FREE_TEXT_LENGTH = 60
MIN_ROWS_FOR_KEYS = 200  # before a field with another value in every row is taken as a key of the row
NEARLY_ALL = 0.99  # of the rows have another value: a key of the row, with a few repeats
NEARLY_A_KEY = "another one in nearly every row"
DEFAULT_MAX_LENGTH = 50


@dataclass
class Proposal:
    """The roles of a schema by field, with a comment for each; `left_out` says why a field has none."""

    labels: list[str]
    timestamp: str | None = None
    weight: str | None = None
    roles: dict[str, str] = field(default_factory=dict)  # field -> categorical, multi_value, sequence or dense
    share: dict[str, str] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    leaks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what a person should look at

    def fields_of(self, role: str) -> list[str]:
        """The fields with a role, in the order of the rows."""
        return [name for name, given in self.roles.items() if given == role]


def propose(sample: SampledRows, labels: Sequence[str] = ()) -> Proposal:
    """Return a proposal for rows; UserError if the label is not clear, or if no feature is left."""
    columns = _profiles(sample, sample.rows)
    proposal = Proposal(labels=[])
    chosen, note = choose_labels(columns, labels)
    proposal.labels = chosen
    if odd := odd_rows(columns, chosen):
        left_out = set().union(*odd.values())
        columns = _profiles(sample, [row for number, row in enumerate(sample.rows) if number not in left_out])
        proposal.notes.append(
            f"{len(left_out):,} of {len(sample.rows):,} rows are unlike the others, and the fields are judged without "
            f"them: {', '.join(f'{name} in {len(rows):,}' for name, rows in odd.items())}"
        )
    if note:
        proposal.notes.append(note)
    for name in chosen:
        values = columns[name].labels or []
        known = [value for value in values if value is not None]
        comment = f"{100 * sum(known) / max(len(known), 1):.3g} % are 1"
        if missing := len(values) - len(known):
            comment += f"; null in {missing:,} rows, which are not learned" if len(chosen) == 1 else ""
        proposal.comments[name] = comment
    rest = {name: column for name, column in columns.items() if name not in chosen}
    choose_timestamp(proposal, rest)
    for name, column in rest.items():
        if name != proposal.timestamp:
            if sample.has_types and column.has_fractions and not column.has_only("integer", "number"):
                proposal.left_out[name] = "fractions in some rows and other values in others"
            _choose_role(proposal, column, [columns[label] for label in chosen])
    _share_rows(proposal, columns)
    if not proposal.roles:
        raise UserError(f"{sample.origin} has no field that can be a feature beside {', '.join(chosen)}")
    return proposal


def _profiles(sample: SampledRows, rows: Sequence[Row]) -> dict[str, ColumnProfile]:
    return {name: ColumnProfile(name, [row.get(name) for row in rows]) for name in sample.columns}


def choose_labels(columns: Mapping[str, ColumnProfile], asked: Sequence[str]) -> tuple[list[str], str]:
    """Return the labels and a note about the choice; UserError lists the candidates if there are several."""
    for name in asked:
        if name not in columns:
            near = nearest(name, columns)
            hint = f"did you mean {near}?" if near else f"there are: {', '.join(columns)}"
            raise UserError(f"--label {name}: the rows have no such field: {hint}")
        column = columns[name]
        if not column.num_values or column.labels is None:
            wrong = next((column.values[row] for row in sorted(column.wrong_labels())), None)
            raise UserError(f"--label {name}: a label is a number from 0 to 1 (or true, false), not {wrong!r}")
    if asked:
        return list(dict.fromkeys(asked)), ""
    binary = [name for name, column in columns.items() if is_binary(column)]
    named = [name for name in binary if hints.is_named(name, hints.LABELS)]
    found = named or binary
    # other numbers in a few rows may be mistakes or belong to a count: the name decides, or a person
    doubtful = [] if named else [name for name in found if columns[name].wrong_labels()]
    if len(found) == 1 and not doubtful:
        others = [name for name in binary if name not in found]
        also = f"; also 0 or 1: {', '.join(others)} (--label NAME chooses)" if others else ""
        return found, f"label: {found[0]}{also}"
    if found:
        raise UserError(
            f"which field is the label? {', '.join(found)} hold{'s' if len(found) == 1 else ''} only 0 and 1"
            f"{' in all but a few rows' if doubtful else ''}: name one with --label (or several: --label A --label B)"
        )
    raise UserError(
        "no field holds only 0 and 1: name the label with --label, a number from 0 to 1; "
        f"the fields are {', '.join(columns)}"
    )


def is_binary(column: ColumnProfile) -> bool:
    """Return True if every value is a 0 or a 1 as the decoder reads labels, and both occur; a few may be wrong."""
    values = column.labels
    return values is not None and {value for value in values if value is not None} == {0.0, 1.0}


def choose_timestamp(proposal: Proposal, columns: Mapping[str, ColumnProfile]) -> None:
    """Take the one field with event times in milliseconds that no row lacks; comment on other times."""
    now_ms = 1000 * time.time()
    usable = []
    for name, column in columns.items():
        in_ms = column.is_integral and column.least is not None and column.least >= EARLIEST_MS
        in_ms = in_ms and column.most is not None and column.most <= now_ms + FUTURE_MS
        is_ascending = in_ms and not column.num_null and all(map(int.__le__, column.values[:-1], column.values[1:]))
        has_name = hints.has_word(name, hints.TIMES)
        if in_ms and (has_name or (is_ascending and column.num_distinct > 1)):
            if column.num_null:
                proposal.left_out[name] = f"a time, but null in {column.num_null:,} rows"
            else:
                usable.append((not is_ascending, not has_name, name))
        elif has_name and (unit := _other_time(column)):
            proposal.left_out[name] = f"a time in {unit}: a timestamp must be whole milliseconds since 1970"
            proposal.notes.append(f"{name} is a time in {unit}: convert it to milliseconds to use it as timestamp")
    if usable:
        usable.sort()
        proposal.timestamp = name = usable[0][2]
        column = columns[name]
        days = [time.strftime("%Y-%m-%d", time.gmtime((bound or 0) / 1000)) for bound in (column.least, column.most)]
        proposal.comments[name] = " to ".join(dict.fromkeys(days)) + ("" if not usable[0][0] else "; not ascending")
        for _, _, other in usable[1:]:
            proposal.left_out[other] = "another time"


def _other_time(column: ColumnProfile) -> str:
    """Return in what a field gives times that the decoder does not accept; "" if it holds no times."""
    if column.has_only("integer", "number") and column.least is not None and column.most is not None:
        return "seconds" if column.least >= EARLIEST_MS / 1000 and column.most < EARLIEST_MS else ""
    texts = [value for value in column.values if isinstance(value, str)]
    is_iso = column.has_only("text") and all(len(t) >= 8 and t[:4].isdigit() and t[4] in "-/" for t in texts)
    return "text" if is_iso else ""


def _choose_role(proposal: Proposal, column: ColumnProfile, labels: Sequence[ColumnProfile]) -> None:
    name = column.name
    if name in proposal.left_out:
        leak = _leak(column, labels)
        if leak:
            proposal.leaks[name] = leak
            del proposal.left_out[name]
        return
    if reason := _useless(column):
        proposal.left_out[name] = reason
        if reason == NEARLY_A_KEY:
            proposal.notes.append(f"{name} is left out, {reason}: write it under categorical if its values come again")
    elif leak := _leak(column, labels):
        proposal.leaks[name] = leak
    elif column.lists:
        _choose_list(proposal, column)
    elif hints.is_named(name, hints.WEIGHTS) and column.has_only("integer", "number") and (column.least or 0) >= 0:
        proposal.weight, proposal.comments[name] = name, f"{column.least:g} to {column.most:g}"
    elif hints.is_named(name, hints.LOGGING_FACTS):
        proposal.left_out[name] = "a fact about how the log was made, which a new request does not have"
    else:
        role = scalar_role(column)
        proposal.roles[name], proposal.comments[name] = role, describe(column, role)
        if hints.is_named(name, hints.MAYBE_WEIGHTS) and role == "dense":
            proposal.notes.append(f'{name} is taken as a feature: if it weighs samples, write weight = "{name}"')


def scalar_role(column: ColumnProfile) -> str:
    """Return "categorical" or "dense" for a field with one value per row.

    Strings and booleans are ids, fractions are numbers. Whole numbers are classified by name, else by how often they
    repeat: few different ones, or ones seen many times, are ids.
    """
    if not column.has_only("integer", "number"):
        return "categorical"
    if not column.is_integral:
        return "dense"
    if hints.has_word(column.name, hints.ID_WORDS):
        return "categorical"
    if hints.has_word(column.name, hints.NUMBER_WORDS):
        return "dense"
    is_hash = max(abs(column.least or 0), abs(column.most or 0)) >= 2**31
    return "categorical" if is_hash or _repeats(column) else "dense"


def _repeats(column: ColumnProfile) -> bool:
    return column.num_distinct <= FEW_VALUES or column.num_values >= 2 * column.num_distinct


def _useless(column: ColumnProfile) -> str:
    """Return why a field cannot be a feature; "" if it can."""
    if not column.name.strip():
        return "it has no name"
    if not column.num_values:
        return "null in every row"
    if "object" in column.kinds:
        return "an object: give its fields names of their own"
    if column.lists:
        if len(column.kinds) > 1:
            return "a list in some rows and a single value in others"
        kinds = {type(element) for element in column.elements()}
        if kinds & {list, dict} or float in kinds:
            return "a list of numbers or of lists: lists hold ids"
        return "every list is empty" if not kinds else ""
    if column.num_distinct == 1 and not column.num_null:
        return "the same in every row"
    if column.num_values >= MIN_ROWS_FOR_KEYS and not column.lists:
        is_text, is_key = column.has_only("text"), column.num_distinct == column.num_values
        is_number = column.is_integral and not hints.has_word(column.name, hints.NUMBER_WORDS)
        if is_key and (is_text or is_number):
            return "another one in every row"
        # many users make nearly as many ids as rows too: what is named an id is one
        nearly = column.num_distinct >= NEARLY_ALL * column.num_values
        if is_text and nearly and not hints.has_word(column.name, hints.ID_WORDS):
            return NEARLY_A_KEY
    if column.has_only("text") and column.mean_length > FREE_TEXT_LENGTH and not _repeats(column):
        return "free text: every text would be an id of its own"
    return ""


def _leak(column: ColumnProfile, labels: Sequence[ColumnProfile]) -> str:
    for label in labels:
        found = leak_of(column, label.labels or []) if is_binary(label) else ""
        if found:
            return found.replace("the label", label.name) if len(labels) > 1 else found
    return ""


def _choose_list(proposal: Proposal, column: ColumnProfile) -> None:
    role = "sequence" if hints.has_word(column.name, hints.SEQUENCE_WORDS) else "multi_value"
    longest = max(map(len, column.lists))
    distinct = len({str(element) for element in column.elements()})
    comment = f"{distinct:,} values, up to {longest} in a row"
    if longest > DEFAULT_MAX_LENGTH:
        comment += f"; cut to {DEFAULT_MAX_LENGTH} unless [features.{column.name}] max_length says otherwise"
    proposal.roles[column.name], proposal.comments[column.name] = role, comment


def _share_rows(proposal: Proposal, columns: Mapping[str, ColumnProfile]) -> None:
    """Let lists share the rows of the field whose values they hold, if the names have a word in common too."""
    for name in [*proposal.fields_of("sequence"), *proposal.fields_of("multi_value")]:
        elements = {str(element) for element in columns[name].elements()}
        stems = {word.rstrip("s") for word in hints.words_of(name)} - {"id"}
        for owner in proposal.fields_of("categorical"):
            is_namesake = bool(stems & {word.rstrip("s") for word in hints.words_of(owner)})
            if is_namesake and 2 * len(elements & columns[owner].counts.keys()) > len(elements):
                proposal.share[name] = owner
                break


def describe(column: ColumnProfile, role: str) -> str:
    """Return what is known of a field, for the comment beside it."""
    if role == "dense":
        text = f"{column.least:g} to {column.most:g}"
    else:
        text = f"{column.num_distinct:,} values"
    share = column.num_null / max(column.num_rows, 1)
    return text + (f"; null in {100 * share:.2g} %" if column.num_null else "")
