"""Tokens for SASL OAUTHBEARER: a fixed one, or those that a token endpoint gives for a client's credentials.

Knows no kafka-python: `library.py` registers `OAuthTokens` as one of its token providers.
"""

import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from springtide.stream.errors import AccessError, RetriableError
from springtide.stream.kafka.secrets import read_secret

TOKEN_URL, CLIENT_ID, CLIENT_SECRET = "sasl_oauth_token_url", "sasl_oauth_client_id", "sasl_oauth_client_secret"
SCOPE, TOKEN = "sasl_oauth_scope", "sasl_oauth_token"
OPTIONS = (TOKEN_URL, CLIENT_ID, CLIENT_SECRET, SCOPE, TOKEN)
REQUEST_SECONDS = 5.0
# a token is asked for again once this part of its life has passed, as the Java client does
RENEW_AT = 0.8
DEFAULT_LIFE_SECONDS = 300.0  # of a token whose endpoint does not say


class OAuthTokens:
    """Gives each connection a token that has not expired; used by the threads of several clients."""

    def __init__(self, options: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        """`options`: those of OPTIONS as they are configured; secrets in them are read at each request."""
        self._options = dict(options)
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0

    def token(self) -> str:
        """A token. Raises AccessError if it is refused, RetriableError if the endpoint does not answer."""
        if TOKEN in self._options:
            return self._read(TOKEN)
        with self._lock:
            if not self._token or self._clock() >= self._renew_at:
                self._token, life_seconds = self._request()
                self._renew_at = self._clock() + RENEW_AT * life_seconds
            return self._token

    def forget(self) -> None:
        """Ask for another token next time: the broker has refused this one."""
        with self._lock:
            self._token = ""

    def extensions(self) -> dict[str, str]:
        """What else the broker is sent: nothing."""
        return {}

    def _read(self, key: str) -> str:
        return read_secret(key, self._options[key])

    def _request(self) -> tuple[str, float]:
        """A new token of the client-credentials grant (RFC 6749, section 4.4), and the seconds that it is valid for."""
        url = self._options[TOKEN_URL]
        quoted = [urllib.parse.quote_plus(self._read(key)) for key in (CLIENT_ID, CLIENT_SECRET)]
        form = {"grant_type": "client_credentials"} | ({"scope": self._read(SCOPE)} if SCOPE in self._options else {})
        request = urllib.request.Request(url, urllib.parse.urlencode(form).encode())
        request.add_header("Authorization", f"Basic {b64encode(':'.join(quoted).encode()).decode()}")
        request.add_header("Accept", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as response:
                document = json.load(response)
            return str(document["access_token"]), float(document.get("expires_in", DEFAULT_LIFE_SECONDS))
        except urllib.error.HTTPError as error:
            with error:
                reason = _reason(error)
            if error.code in (408, 429) or error.code >= 500:
                raise RetriableError(f"the token endpoint {url} answers {error.code}: look at its log") from None
            raise AccessError(
                f"the token endpoint {url} refuses the client {self._options[CLIENT_ID]!r} ({error.code} {reason}): "
                f"check {CLIENT_ID}, {CLIENT_SECRET} and {SCOPE} in [source] kafka"
            ) from None
        except OSError as error:
            cause = getattr(error, "reason", error)
            raise RetriableError(
                f"the token endpoint {url} does not answer ({cause}): start it, or correct {TOKEN_URL}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise AccessError(f"{url} is no token endpoint: it sent no access_token; correct {TOKEN_URL}") from None


def _reason(error: urllib.error.HTTPError) -> str:
    """The error code in the endpoint's JSON (RFC 6749, section 5.2), else HTTP's."""
    try:
        return str(json.load(error)["error"])[:80]
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)


@lru_cache(maxsize=16)
def _tokens(options: tuple[tuple[str, str], ...]) -> OAuthTokens:
    return OAuthTokens(dict(options))


def take_oauth_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], OAuthTokens | None]:
    """Divide the options: those that kafka-python has, and the tokens that the others describe, one object for all.

    Raises ValueError where one is missing.
    """
    ours = {key: options[key] for key in OPTIONS if key in options}
    rest = {key: value for key, value in options.items() if key not in ours}
    if not ours:
        return rest, None
    if TOKEN not in ours and (missing := [key for key in OPTIONS[:3] if key not in ours]):
        raise ValueError(f"kafka needs {' and '.join(missing)} too, or {TOKEN} alone, for OAUTHBEARER")
    if not all(isinstance(value, str) for value in ours.values()):
        raise ValueError(f"kafka: {', '.join(ours)} must be strings")
    if not str(ours.get(TOKEN_URL, "https://")).startswith(("https://", "http://")):
        raise ValueError(f"kafka: {TOKEN_URL} must begin with https:// or http://")
    return rest, _tokens(tuple(sorted(ours.items())))
