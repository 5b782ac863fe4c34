from types import SimpleNamespace

import numpy as np

from springtide.app.serving.model.id_dictionary import LiveIdDictionary
from springtide_client.keys import hash_string

FEATURE = 3


def columns(*strings: str) -> dict[str, np.ndarray]:
    """The strings of one feature, sorted by id, as a base and a record hold them."""
    texts = sorted((string.encode() for string in strings), key=hash_string)
    return {
        "feature": np.full(len(texts), FEATURE, np.uint16),
        "id": np.array([hash_string(text) for text in texts], np.int64),
        "offsets": np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64),
        "bytes": np.frombuffer(b"".join(texts), np.uint8),
    }


def base(*strings: str) -> SimpleNamespace:
    return SimpleNamespace(id_strings=columns(*strings) if strings else None)


def record(number: int, *strings: str) -> SimpleNamespace:
    tensors = {f"texts.{name}": column for name, column in columns(*strings).items()} if strings else {}
    return SimpleNamespace(number=number, tensors=lambda: tensors)


def ids(*strings: str) -> np.ndarray:
    return np.array([hash_string(string.encode()) for string in strings], np.int64)


def test_strings_are_found_in_the_base_and_in_later_records():
    dictionary = LiveIdDictionary()
    assert not dictionary.has_strings(base(), FEATURE)
    assert dictionary.has_strings(base("hat"), FEATURE)
    dictionary.add(record(5))
    dictionary.add(record(6, "shoe", "boot"))
    assert dictionary.has_strings(base(), FEATURE)
    assert not dictionary.has_strings(base("hat"), FEATURE + 1)
    asked = np.concatenate([ids("boot", "hat", "sock"), [7]])
    assert dictionary.find(base("hat"), FEATURE, asked) == ["boot", "hat", None, None]
    assert dictionary.find(base(), FEATURE, asked) == ["boot", None, None, None]
    assert dictionary.find(base("hat"), FEATURE + 1, asked) == [None] * 4


def test_strings_that_a_base_has_are_dropped():
    dictionary = LiveIdDictionary()
    dictionary.add(record(6, "shoe"))
    dictionary.add(record(7, "boot"))
    dictionary.drop_through(6)
    assert dictionary.find(base(), FEATURE, ids("shoe", "boot")) == [None, "boot"]
    assert dictionary.find(base("shoe"), FEATURE, ids("shoe", "boot")) == ["shoe", "boot"]
