"""Guesses a field's role by its name; its values have the last word."""

import re
from collections.abc import Collection

LABELS = {
    "click", "clicked", "is_click", "is_clicked", "label", "target", "y", "converted", "conversion", "is_conversion",
    "is_attributed", "purchased", "is_purchase", "bought", "liked", "is_like", "response", "outcome", "installed",
}  # fmt: skip
TIMES = {"ts", "time", "timestamp", "datetime", "date", "ms", "epoch", "at", "when"}
WEIGHTS = {"sample_weight", "importance_weight", "instance_weight", "example_weight"}
MAYBE_WEIGHTS = {"weight", "weights", "w", "importance"}
LOGGING_FACTS = {"propensity", "pscore", "propensity_score", "action_prob"}
ID_WORDS = {
    "id", "ids", "zip", "zipcode", "zip_code", "postcode", "code", "hash", "key", "uuid", "ip", "app", "device", "os",
    "channel", "category", "type", "class", "group", "segment", "campaign", "position", "slot", "country", "region",
    "city", "store", "brand", "manufacturer", "hour", "weekday", "month", "week",
}  # fmt: skip
NUMBER_WORDS = {
    "age", "price", "cost", "amount", "count", "num", "n", "score", "rating", "duration", "seconds", "minutes", "days",
    "bytes", "size", "length", "width", "height", "distance", "lat", "lon", "latitude", "longitude", "avg", "mean",
    "sum", "total", "ratio", "rate", "pct", "percent", "year", "temperature", "rank", "balance", "income", "salary",
}  # fmt: skip
SEQUENCE_WORDS = {"last", "history", "recent", "seq", "sequence", "previous", "prev", "past", "session", "viewed"}


def words_of(name: str) -> list[str]:
    """Return the words of a name: `lastItemIds` and `last_item_ids` have the same three."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def has_word(name: str, words: Collection[str]) -> bool:
    """Return True if one of the name's words, or all of them together, is among `words`."""
    found = words_of(name)
    return "_".join(found) in words or any(word in words for word in found)


def is_named(name: str, names: Collection[str]) -> bool:
    """Return True if the whole name is one of these."""
    return "_".join(words_of(name)) in names
