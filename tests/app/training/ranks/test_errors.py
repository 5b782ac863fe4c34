"""An error of one rank is raised by all as one of the same class, also where its constructor asks for more."""

import pickle

import pytest

from springtide.app.training.ranks.errors import pickle_error, unpickle_error
from springtide_client.errors import EncodeError, LogError


def sent(error: Exception) -> Exception:
    return unpickle_error(pickle.loads(pickle.dumps(pickle_error(error))))


@pytest.mark.parametrize(
    "error",
    [
        LogError("no such version"),
        EncodeError("bad_id", "user_id: not a number", field="user_id"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        OSError(28, "No space left on device"),
    ],
)
def test_class_and_text_are_kept(error):
    again = sent(error)
    assert isinstance(again, type(error))
    assert str(again) == str(error)


def test_a_class_that_cannot_be_imported_becomes_the_one_above_it():
    class LocalError(LogError):
        pass

    again = sent(LocalError("full"))
    assert type(again).__mro__[1] is LogError
    assert str(again) == "full"
