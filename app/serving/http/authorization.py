"""Authorization: bearer tokens with scopes, the scope that a path needs, and Host names where there are no tokens."""

import hashlib
import hmac
import ipaddress
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from springtide.app.serving.config import ServeConfig
from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.http.route import Scope

SCOPES = ("read", "predict", "admin")
ENVIRONMENT_NAME = "SPRINGTIDE_TOKENS"
MIN_LENGTH = 8

logger = logging.getLogger(__name__)


class Tokens:
    """The tokens of one server; a scope in `open_scopes` needs no token.

    `admin` is never open, and does not include the other scopes: a token has exactly the scopes it names.
    """

    def __init__(self, scopes_by_token: Mapping[str, frozenset[str]], *, open_scopes: Iterable[str] = ()) -> None:
        # digests have one length, so that comparing reveals nothing about the length of a token
        self._scopes = [(_digest(token), scopes) for token, scopes in scopes_by_token.items()]
        self._open = frozenset(open_scopes) - {"admin"}

    @property
    def open_scopes(self) -> frozenset[str]:
        """The scopes that need no token."""
        return self._open

    def check(self, authorization: str | None, scope: str) -> None:
        """Raise ApiError 401 without a known token, 403 if the token lacks the scope."""
        if scope in self._open:
            return
        token = authorization[7:].strip() if authorization and authorization[:7].lower() == "bearer " else None
        granted = self._granted(token) if token else None
        if granted is None:
            hint = f"send the header Authorization: Bearer <token> with a token of scope {scope}"
            if not any(scope in scopes for _, scopes in self._scopes):
                hint = (
                    f"no token has this scope: put {scope}=SECRET into tokens_file or {ENVIRONMENT_NAME}, and restart"
                )
            raise ApiError(
                401,
                "unauthorized",
                f"this needs a token of scope {scope}" if token is None else "the token is not known to this server",
                hint,
                headers={"WWW-Authenticate": "Bearer"},
            )
        if scope not in granted:
            hint = f"use a token whose entry in tokens_file or {ENVIRONMENT_NAME} names {scope}"
            raise ApiError(403, "forbidden", f"the token lacks the scope {scope}", hint)

    def _granted(self, token: str) -> frozenset[str] | None:
        digest = _digest(token)
        granted = None
        for known, scopes in self._scopes:  # always all of them: the time reveals nothing
            if hmac.compare_digest(known, digest):
                granted = scopes
        return granted


def load_tokens(config: ServeConfig, environment: Mapping[str, str] = os.environ) -> Tokens:
    """Load the tokens of `tokens_file` and of the environment.

    One entry per line, in the environment between semicolons: `read,predict=SECRET`; lines with # are comments. Without
    a read or predict token only loopback is served. Raises ValueError if the server would be open to the network.
    """
    found = _tokens_of(config, environment)
    granted = frozenset[str]().union(*found.values())
    if granted & {"read", "predict"}:
        return Tokens(found)
    if not config.is_loopback and not config.insecure:
        raise ValueError(
            f"[serve] host = {config.host!r} can be reached from other machines, but no read or predict token is set: "
            f"set tokens_file or {ENVIRONMENT_NAME}, bind to 127.0.0.1, or set insecure = true"
        )
    return Tokens(found, open_scopes=("read", "predict"))


def read_token(config: ServeConfig, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the first token with the scope `read`, which this server shows to those of other parts; None: no token.

    Raises ValueError as `load_tokens` does.
    """
    return next((token for token, scopes in _tokens_of(config, environment).items() if "read" in scopes), None)


def _tokens_of(config: ServeConfig, environment: Mapping[str, str]) -> dict[str, frozenset[str]]:
    text = environment.get(ENVIRONMENT_NAME, "").replace(";", "\n")
    found = parse_tokens(text, origin=ENVIRONMENT_NAME)
    if config.tokens_file is not None:
        found = {**found, **parse_tokens(_read(Path(config.tokens_file)), origin=config.tokens_file)}
    return found


def parse_tokens(text: str, *, origin: str) -> dict[str, frozenset[str]]:
    """Parse the scopes of each token; ValueError names the line, never the token."""
    found: dict[str, frozenset[str]] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        names, separator, token = line.partition("=")
        scopes = frozenset(name.strip() for name in names.split(","))
        if not separator or not scopes <= set(SCOPES):
            raise ValueError(f"{origin}, entry {number}: expected scopes=token with scopes of {', '.join(SCOPES)}")
        token = token.strip()
        if len(token) < MIN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError(f"{origin}, entry {number}: a token is at least {MIN_LENGTH} printable ASCII characters")
        found[token] = found.get(token, frozenset()) | scopes
    return found


def _read(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            logger.warning("tokens_file can be read by other users: chmod 600 it", extra={"path": str(path)})
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"[serve] tokens_file = {str(path)!r} cannot be read: {error}") from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Authorizer:
    """Checks a request before its body is read."""

    def __init__(self, config: ServeConfig, tokens: Tokens, scope_of: Callable[[str], Scope]) -> None:
        self._tokens, self._scope_of = tokens, scope_of
        # a page of another site can make a browser send requests here under the site's name (DNS rebinding)
        self.checks_host = config.is_loopback and bool(tokens.open_scopes) and not config.insecure

    @property
    def open_scopes(self) -> frozenset[str]:
        """The scopes that need no token."""
        return self._tokens.open_scopes

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise ApiError 401 or 403 without the right token, 421 for a foreign Host."""
        if self.checks_host and not is_local_name(headers.get("host", "")):
            hint = "send the request to 127.0.0.1 or localhost, or configure tokens"
            raise ApiError(
                421,
                "foreign_host",
                f"without tokens only local Host headers are accepted, got {headers.get('host')}",
                hint,
            )
        scope = self._scope_of(path)
        if scope != "public":
            self._tokens.check(headers.get("authorization"), scope)


@lru_cache(maxsize=256)
def is_local_name(host: str) -> bool:
    """Return True if a Host header names this machine; a missing one (HTTP/1.0) does."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
