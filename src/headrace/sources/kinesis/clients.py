"""The clients of boto3 with which a command or an update reads streams."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from headrace.errors import HeadraceError
from headrace.model.project import AwsSettings
from headrace.sources.kinesis.connection import StreamConnection
from headrace.sources.requests import Asking, Client

_LOGIN = ("access_key_id", "secret_access_key", "session_token", "profile")


def connect(settings: AwsSettings, stream: str, given: Mapping[str, str | None]) -> StreamConnection:
    """The connection to a stream: the arguments of a reader, then the settings of the spec. An ARN has the
    region."""
    chosen = {name: value for name, value in vars(settings).items() if value is not None}
    if stream.startswith("arn:"):
        chosen |= {"arn": stream, "region": stream.split(":")[3]}
    chosen |= {name: value for name, value in given.items() if value is not None}
    # The processes of Spark may have other environment variables.
    known = {"region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")}
    if not chosen.keys() & {"access_key_id", "profile"}:
        known |= {name: os.environ.get(f"AWS_{name.upper()}") for name in _LOGIN}
    chosen = {name: value for name, value in known.items() if value} | chosen
    return StreamConnection(stream=stream.rpartition("/")[2], **chosen)


def connect_again(settings: AwsSettings, identity: Mapping[str, Any]) -> StreamConnection:
    """The connection to a stream that a flow has read, with the login of the spec."""
    arn = identity["id"].partition("@")[0]
    given = {"region": identity.get("region"), "endpoint": identity.get("endpoint")}
    return replace(connect(settings, arn, given), arn=identity.get("arn"))


def reach_stream(settings: AwsSettings, identity: Mapping[str, Any]) -> tuple[Any, Mapping[str, str]]:
    """A client for a stream that a flow has read, and the parameter that names the stream in requests."""
    connection = connect_again(settings, identity)
    return connection.open(), connection.names


class KinesisClients(Client):
    """One client of boto3 for each connection."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._lock = threading.Lock()
        self._known: dict[str, StreamConnection] = {}  # by the id of the stream
        self._clients: dict[StreamConnection, Any] = {}

    @classmethod
    def open(cls, asking: Asking) -> Self:
        return cls(asking)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def reach(self, connection: StreamConnection) -> Any:
        key = replace(connection, stream="", arn=None)
        with self._lock:
            if key not in self._clients:
                attempts = 2 if self._asking.asks_once else 4
                self._clients[key] = connection.open(attempts=attempts, timeout_s=self._asking.timeout_s)
            return self._clients[key]

    def know(self, id: str, connection: StreamConnection) -> None:
        """Remember the connection to a stream, with its login."""
        self._known[id] = connection

    def at(self, identity: Mapping[str, Any]) -> StreamConnection:
        """The connection to a stream that a flow has read; without a plan, with the login of the spec."""
        known = self._known.get(identity["id"])
        return known or connect_again(self._asking.settings().kinesis, identity)

    def fail(self, error: HeadraceError) -> None:
        """Keep the reason why a lag is not known."""
        self.failure = error
