"""Errors that every new start of the ranks would meet again: the launcher does not start them again."""

from springtide.app.errors import UserError
from springtide_client.errors import SpringtideError

USER_ERROR_CODE = 2
FINAL_CODE = 3  # of a rank; the launcher's is 1
FINAL_CODES = (USER_ERROR_CODE, FINAL_CODE)


class FinalError(SpringtideError):
    """What was asked for cannot be done, and another try would not change that."""


def is_final(error: BaseException) -> bool:
    """Return True if a new start would only end with the same error."""
    return isinstance(error, (UserError, FinalError)) or bool(getattr(error, "ends_launch", False))


def exit_code(error: BaseException) -> int:
    """Return the exit code of a rank that ends with this error."""
    if not is_final(error):
        return 1
    return USER_ERROR_CODE if isinstance(error, UserError) else FINAL_CODE
