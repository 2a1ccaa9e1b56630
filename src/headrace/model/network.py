"""Addresses of this machine; tokens and signatures of requests."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from typing import Final

LOOPBACK: Final = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host: ``localhost``, or such a number."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_bearer(header: str | None, token: str) -> bool:
    """Whether an Authorization header has a token."""
    kind, _, given = (header or "").partition(" ")
    # Servers read each byte of a header as a letter; the token can have letters of several bytes.
    sent = given.strip(" ").encode("latin-1", "replace")
    return kind.lower() == "bearer" and secrets.compare_digest(sent, token.encode())


def signature(key: str, body: bytes) -> dict[str, str]:
    """The header by which a receiver knows that a message comes from the holder of a key."""
    return {"X-Headrace-Signature": f"sha256={hmac.new(key.encode(), body, hashlib.sha256).hexdigest()}"}
