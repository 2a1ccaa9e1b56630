"""A mail server that keeps the mails that it gets; without encryption and login."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage


@contextmanager
def running_mail_server() -> Iterator[tuple[str, list[EmailMessage]]]:
    """Yields ``HOST:PORT`` and the list of the mails."""
    mails: list[EmailMessage] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            for line in self.rfile:
                command = line.strip().upper()
                if command == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    body = b"".join(iter(self.rfile.readline, b".\r\n"))
                    mails.append(message_from_bytes(body, policy=policy.default))  # type: ignore[arg-type]
                self.wfile.write(b"221 end\r\n" if command == b"QUIT" else b"250 yes\r\n")
                if command == b"QUIT":
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="mail")
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", mails
        finally:
            server.shutdown()
            thread.join()
