"""A quick check whether a server listens, before a client retries until its timeout."""

from __future__ import annotations

import socket


def connection_errors(servers: str, timeout_s: float) -> list[str]:
    """Connects to the addresses of a list such as ``a:9092,b:9092`` until one succeeds.

    Returns:
        The error of each address, or an empty list if one connection succeeded.
    """
    reasons = []
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            reasons.append(f"{server.strip() or 'no address'}: {why}")
        else:
            return []
    return reasons
