"""An error of one rank, sent to the others, which raise one of the same class, so that all handle it alike."""

import pickle
from typing import Any

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
