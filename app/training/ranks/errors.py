"""The errors of ranks: those after which the launcher starts none again, a lost rank, and errors sent to the others."""

import pickle
from typing import Any

from springtide.app.errors import UserError
from springtide_client.errors import SpringtideError

USER_ERROR_CODE = 2
FINAL_CODE = 3  # of a rank; the launcher's is 1
FINAL_CODES = (USER_ERROR_CODE, FINAL_CODE)


class FinalError(SpringtideError):
    """An error that another try would not change."""


class RankLostError(SpringtideError):
    """Another rank has ended, failed or frozen: this one cannot go on."""

    ends_launch = False  # True: a new start would end in the same way


def is_final(error: BaseException) -> bool:
    """Return True if a new start would only end with the same error."""
    return isinstance(error, (UserError, FinalError)) or bool(getattr(error, "ends_launch", False))


def exit_code(error: BaseException) -> int:
    """Return the exit code of a rank that ends with this error."""
    if not is_final(error):
        return 1
    return USER_ERROR_CODE if isinstance(error, UserError) else FINAL_CODE


PickledError = tuple[bytes, type[Exception], str]


def pickle_error(error: Exception) -> PickledError:
    """Return what the other ranks need, in a form that can be pickled."""
    try:
        whole = pickle.dumps(error)
        if type(pickle.loads(whole)) is not type(error):
            whole = b""
    except Exception:  # its constructor takes other arguments than its text, or it holds what cannot be pickled
        whole = b""
    return whole, _known_class(type(error)), str(error)


def unpickle_error(pickled: PickledError) -> Exception:
    """Return the error; where it cannot be made again, one of its class with its text alone."""
    whole, kind, text = pickled
    if whole:
        error: Exception = pickle.loads(whole)
        return error

    def keep_text(self: Exception, text: str) -> None:
        Exception.__init__(self, text)

    members: dict[str, Any] = {"__init__": keep_text, "__str__": lambda self: self.args[0], "__module__": __name__}
    same: type[Exception] = type(kind.__name__, (kind,), members)
    return same(text)


def _known_class(kind: type[BaseException]) -> type[Exception]:
    """Return the class, or the nearest one above it that other processes can import."""
    for known in kind.__mro__:
        try:
            pickle.dumps(known)
        except Exception:
            continue
        if issubclass(known, Exception):
            return known
    return Exception
