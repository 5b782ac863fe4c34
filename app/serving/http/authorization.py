"""Authorization: tokens of the scope that a path needs, and the Host names a server without tokens answers to."""

import ipaddress
from collections.abc import Callable, Mapping
from functools import lru_cache

from springtide.app.serving.config import ServeConfig
from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.http.route import Scope
from springtide.app.serving.http.tokens import Tokens


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
