"""What commands and an engine say to each other: JSON objects, one a line, over a local socket."""

from __future__ import annotations

import json
import socket
from typing import Any

_LONGEST = 1 << 20


class WireError(OSError):
    """The other side closed the connection, or sent something else than messages."""


class Wire:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lines = connection.makefile("rb")

    def send(self, **message: Any) -> None:
        """Sends a message.

        Raises:
            OSError: The other side has ended.
        """
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Returns the next message.

        Raises:
            WireError: The other side has ended, or sent something else.
            TimeoutError: The other side did not answer in time.
        """
        line = self._lines.readline(_LONGEST)
        if not line.endswith(b"\n"):
            raise WireError("the connection was closed")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise WireError("the other side sent something else than messages") from error
        if not isinstance(message, dict):
            raise WireError("the other side sent something else than messages")
        return message

    def close(self) -> None:
        """Closes the connection."""
        self._lines.close()
        self.connection.close()
