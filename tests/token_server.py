"""A provider of OpenID Connect: signs tokens for clients that know their secret."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

_KEY_ID = "1"
_LIFE_S = 600


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenIssuer:
    """A key pair, and the tokens that it signs."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def write_keys(self, path: Path) -> None:
        """Write the public key as the brokers read it."""
        numbers = self._key.public_key().public_numbers()
        parts = {"n": numbers.n, "e": numbers.e}
        key = {name: _encoded(n.to_bytes((n.bit_length() + 7) // 8, "big")) for name, n in parts.items()}
        named = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_ID, **key}
        path.write_text(json.dumps({"keys": [named]}))

    def token(self, subject: str, scope: str) -> str:
        now = int(time.time())
        header = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        claims = {"sub": subject, "iat": now, "exp": now + _LIFE_S, "scope": scope, "aud": scope}
        body = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        signature = self._key.sign(body.encode(), padding.PKCS1v15(), SHA256())
        return f"{body}.{_encoded(signature)}"

    @contextmanager
    def serving(self, secrets: Mapping[str, str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Serve tokens. `secrets`: by client. Gives the address, and a list that gets each request."""
        asked: list[dict[str, Any]] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                client, _, secret = login.partition(":")
                scope = form.get("scope", [""])[0]
                asked.append({"client": client, "scope": scope, "agent": self.headers["User-Agent"]})
                right = secrets.get(client) == secret
                answer = (
                    {
                        "access_token": issuer.token(client, scope),
                        "expires_in": _LIFE_S,
                        "token_type": "Bearer",
                    }
                    if right
                    else {"error": "invalid_client"}
                )
                body = json.dumps(answer).encode()
                self.send_response(200 if right else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token", asked
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
