"""An authority with certificates for tests, and a key that signs tokens; made by openssl."""

import base64
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def openssl(*arguments: str, stdin: bytes | None = None) -> bytes:
    """Run openssl and return its output."""
    done = subprocess.run(["openssl", *arguments], capture_output=True, input=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, PEM files."""

    certificate: Path
    key: Path

    @property
    def keystore(self) -> Path:
        """Both in one file."""
        path = self.key.with_suffix(".keystore.pem")
        path.write_bytes(self.key.read_bytes() + self.certificate.read_bytes())
        return path


@dataclass(frozen=True)
class TokenKey:
    """Signs JSON Web Tokens (RS256)."""

    key: Path

    def jwks(self) -> str:
        """The public key as a JSON Web Key Set."""
        modulus = openssl("rsa", "-in", str(self.key), "-noout", "-modulus").decode().strip().partition("=")[2]
        key = {"kty": "RSA", "kid": "test", "use": "sig", "alg": "RS256", "n": encoded(bytes.fromhex(modulus))}
        return json.dumps({"keys": [key | {"e": encoded(b"\x01\x00\x01")}]})

    def token(self, **claims: Any) -> str:
        """A signed token; it is valid for five minutes unless the claims say otherwise."""
        now = int(time.time())
        claims = {"sub": "trainer", "iat": now, "exp": now + 300} | claims
        parts = ({"alg": "RS256", "typ": "JWT", "kid": "test"}, claims)
        text = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        signature = openssl("dgst", "-sha256", "-sign", str(self.key), stdin=text.encode())
        return f"{text}.{encoded(signature)}"


def encoded(content: bytes) -> str:
    """Base 64 as in tokens."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


class Authority:
    """Signs certificates for 127.0.0.1 and localhost. `certificate` is its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.certificate, self._key = folder / "ca.pem", folder / "ca.key"
        subject = ["-subj", "/CN=springtide tests", "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE"]
        self._make_key(self._key)
        openssl("req", "-x509", "-key", str(self._key), "-out", str(self.certificate), *subject)

    def issue(self, name: str, *, host: str = "localhost") -> Certificate:
        """A certificate that this authority has signed, for server and client."""
        key, request, certificate = (self._folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        extensions = self._folder / f"{name}.ext"
        address = ",IP:127.0.0.1" if host == "localhost" else ""
        extensions.write_text(f"subjectAltName=DNS:{host}{address}\nextendedKeyUsage=serverAuth,clientAuth\n")
        self._make_key(key)
        openssl("req", "-new", "-key", str(key), "-out", str(request), "-subj", f"/CN={name}")
        signing = ["-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial", "-days", "2"]
        openssl("x509", "-req", "-in", str(request), *signing, "-extfile", str(extensions), "-out", str(certificate))
        return Certificate(certificate, key)

    def token_key(self) -> TokenKey:
        """A key for tokens."""
        path = self._folder / "token.key"
        self._make_key(path)
        return TokenKey(path)

    @staticmethod
    def _make_key(path: Path) -> None:
        openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(path))
