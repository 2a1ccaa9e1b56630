"""A real Apache Kafka of one process, for work on one machine; it lives on until it is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from headrace.errors import (
    BrokerPortInUseError,
    BrokerStartError,
    BrokerUnreachableError,
    TopicExistsError,
    UsageError,
)
from headrace.model.connections import KafkaConnection
from headrace.runtime.broker_security import LISTENERS, Certificates, Security
from headrace.runtime.broker_setup import Ports, build_start_command, format_storage, write_properties
from headrace.runtime.jvm import tail
from headrace.runtime.places import broker_folder
from headrace.runtime.processes import end, start_bound, start_detached

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

VERSION = "4.3.0"

_START_TIMEOUT_S = 60.0
"""Kafka checks every segment after a crash; a start takes 3 s otherwise."""

_STOP_TIMEOUT_S = 20.0
_REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class BrokerStatus:
    """How the embedded broker is.

    Args:
        state: ``starting`` means that the process is there and does not listen yet.
        directory: Its state, data and log.
        bootstrap: Its address; the last one where it is down; ``None`` before the first start.
        memory_mb: Resident memory of its process.
    """

    state: str
    directory: Path
    log_file: Path
    bootstrap: str | None = None
    pid: int | None = None
    started: float | None = None
    memory_mb: int | None = None

    @property
    def running(self) -> bool:
        return self.state == "running"


@dataclass(frozen=True)
class Topic:
    """A topic of the embedded broker.

    Args:
        records: Offsets between the beginnings and the ends of its partitions; transaction
            markers and compaction leave fewer records than that.
    """

    name: str
    id: str
    partitions: int
    records: int


class Broker:
    """The embedded broker in one folder.

    Example:
        >>> broker = Broker()
        >>> broker.start()
        '127.0.0.1:53211'

    Args:
        directory: State, data and log; the user's own by default.
        port: The port for clients; kept from the last start, or a free one, by default.
        bound: Whether a broker that this object starts ends with this process; for tests.
        security: Secured listeners beside the plain one.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        bound: bool = False,
        security: Security | None = None,
    ) -> None:
        self.directory = (directory or broker_folder()).absolute()
        self.certificates = Certificates.within(self.directory / "certificates")
        self._security = security
        self._port = port
        self._bound = bound
        self._child: subprocess.Popen[bytes] | None = None
        self._state_file = self.directory / "broker.json"
        self._properties = self.directory / "server.properties"
        self.log_file = self.directory / "server.log"
        self.data = self.directory / "data"

    def status(self) -> BrokerStatus:
        """How it is now; starts nothing."""
        known = self._read_state()
        process = self._find_process(known)
        bootstrap = known.get("bootstrap")
        if process is None:
            return BrokerStatus("stopped", self.directory, self.log_file, bootstrap)
        listening = bootstrap is not None and _listens(int(bootstrap.rsplit(":", 1)[1]))
        with contextlib.suppress(psutil.Error):
            return BrokerStatus(
                "running" if listening else "starting",
                self.directory,
                self.log_file,
                bootstrap,
                process.pid,
                known.get("started"),
                process.memory_info().rss // (1 << 20),
            )
        return BrokerStatus("stopped", self.directory, self.log_file, bootstrap)

    def start(self) -> str:
        """Start it where it is down, wait until it answers, and return its address.

        Raises:
            BrokerStartError: It ended or did not answer in time.
            BrokerPortInUseError: Another program has the port that was asked for.
        """
        with self._locked():
            known = self._read_state()
            process = self._find_process(known)
            if process is None:
                return self._start()
            bootstrap: str = known["bootstrap"]
            self._await_answer(bootstrap, process.pid)
            return bootstrap

    def address(self, listener: str) -> str:
        """The address of one of its secured listeners, ``SASL_SSL`` or ``SSL``."""
        ports = Ports.read(self._properties)
        if self._security is None or ports is None or listener not in ports.secured:
            raise ValueError(f"the broker was not started with a listener {listener}")
        return f"{self._security.hosts[0]}:{ports.secured[listener]}"

    def stop(self) -> bool:
        """End it and keep its data; whether it was running."""
        if not self.directory.is_dir():
            return False
        with self._locked():
            process = self._find_process(self._read_state())
            if process is None:
                return False
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
                try:
                    process.wait(_STOP_TIMEOUT_S)
                except psutil.TimeoutExpired:
                    process.kill()
                    process.wait(_STOP_TIMEOUT_S)
            if self._child is not None:
                end(self._child, 0)
                self._child = None
            return True

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic.

        Raises:
            TopicExistsError: It is there already.
            UsageError: The broker does not take the name or the settings.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(name, partitions, 1, config=dict(config or {}))
        # A client that is collected takes its open requests with it.
        admin = self._admin()
        try:
            admin.create_topics([wanted], request_timeout=_REQUEST_TIMEOUT_S)[name].result()
        except KafkaException as error:
            reason: Any = error.args[0]
            if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExistsError(
                    f"topic `{name}` exists already; nothing was changed",
                    remedies=["headrace broker topics list"],
                    params={"topic": name},
                ) from error
            if reason.retriable() or reason.code() < 0:
                raise self._unreachable(reason) from error
            raise UsageError(
                f"the broker refuses topic `{name}`: {reason.str()}",
                params={"topic": name, "reason": reason.name()},
            ) from error

    def list_topics(self) -> tuple[Topic, ...]:
        """The topics of users, by name; Kafka's own are left out."""
        from confluent_kafka import KafkaException, TopicCollection, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        admin = self._admin()
        try:
            names = [
                name for name in admin.list_topics(timeout=_REQUEST_TIMEOUT_S).topics if name[:2] != "__"
            ]
            if not names:
                return ()
            described = admin.describe_topics(TopicCollection(names), request_timeout=_REQUEST_TIMEOUT_S)
            found = {name: future.result() for name, future in described.items()}
            places = [
                TopicPartition(name, part.id) for name, topic in found.items() for part in topic.partitions
            ]
            counts = dict.fromkeys(names, 0)
            for sign, spec in ((-1, OffsetSpec.earliest()), (1, OffsetSpec.latest())):
                answers = admin.list_offsets(dict.fromkeys(places, spec), request_timeout=_REQUEST_TIMEOUT_S)
                for place, future in answers.items():
                    counts[place.topic] += sign * future.result().offset
        except KafkaException as error:
            raise self._unreachable(error.args[0]) from error
        return tuple(
            Topic(name, str(topic.topic_id), len(topic.partitions), counts[name])
            for name, topic in sorted(found.items())
        )

    def _start(self) -> str:
        ports = self._choose_ports()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_properties(ports)
        if not (self.data / "meta.properties").is_file():
            format_storage(self._properties, self.log_file)
        command = build_start_command(self._properties, self.log_file)
        try:
            pid = self._launch(command)
        except OSError as error:
            raise self._start_error(f"was not started: {error}") from error
        bootstrap = f"127.0.0.1:{ports.client}"
        self._write_state(pid, bootstrap)
        self._await_answer(bootstrap, pid)
        if self._security is not None:
            self._security.add_users(_admin_client(bootstrap))
        return bootstrap

    def _write_properties(self, ports: Ports) -> None:
        security = self._security
        if security is None:
            write_properties(self._properties, self.data, ports)
            return
        self.certificates.make(security.hosts)
        secured = security.properties(self.certificates)
        write_properties(self._properties, self.data, ports, security.hosts[0], secured)

    def _launch(self, command: list[str]) -> int:
        if not self._bound:
            return start_detached(command, self.log_file)
        self._child = start_bound(command, self.log_file)
        return self._child.pid

    def _choose_ports(self) -> Ports:
        last = Ports.read(self._properties)
        if self._port is not None:
            if not _is_free(self._port):
                raise BrokerPortInUseError(
                    f"another program listens on 127.0.0.1:{self._port}",
                    facts=["the broker was not started"],
                    remedies=["end that program, or leave the port to Headrace:   headrace broker start"],
                    params={"port": self._port},
                )
            client = self._port
        else:
            # Clients may hold the last address; another is chosen only where that one is taken.
            client = last.client if last is not None and _is_free(last.client) else _free_port()
        controller = last.controller if last is not None and _is_free(last.controller) else _free_port()
        secured: dict[str, int] = {}
        for name in LISTENERS if self._security is not None else ():
            port = last.secured.get(name) if last is not None else None
            secured[name] = port if port is not None and _is_free(port) else _free_port()
        return Ports(client, controller, secured)

    def _await_answer(self, bootstrap: str, pid: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        port = int(bootstrap.rsplit(":", 1)[1])
        while time.monotonic() < deadline:
            if not _is_alive(pid):
                raise self._start_error("ended while it was starting")
            if _listens(port) and _answers(bootstrap):
                return
            time.sleep(0.05)
        self._end(pid)
        raise self._start_error(f"did not answer within {_START_TIMEOUT_S:.0f} s and was ended")

    def _start_error(self, what: str) -> BrokerStartError:
        return BrokerStartError(
            f"the embedded broker {what}",
            facts=[*tail(self.log_file, 12), f"log: {self.log_file}"],
            remedies=["headrace doctor", "headrace broker start"],
            params={"log_file": str(self.log_file)},
        )

    def _end(self, pid: int) -> None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            process.kill()
            process.wait(5)

    def _write_state(self, pid: int, bootstrap: str) -> None:
        state = {"pid": pid, "started": psutil.Process(pid).create_time(), "bootstrap": bootstrap}
        unfinished = self._state_file.with_suffix(".new")
        unfinished.write_text(json.dumps(state))
        unfinished.replace(self._state_file)

    def _read_state(self) -> dict[str, Any]:
        try:
            found = json.loads(self._state_file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and {"pid", "started", "bootstrap"} <= found.keys() else {}

    def _find_process(self, known: Mapping[str, Any]) -> psutil.Process | None:
        """The broker's process; ``None`` where its id has gone to another program since."""
        try:
            process = psutil.Process(known["pid"])
            same = abs(process.create_time() - known["started"]) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (KeyError, psutil.Error):
            return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Two processes that need the broker at once start one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _admin(self) -> AdminClient:
        status = self.status()
        if status.bootstrap is None or not status.running:
            raise BrokerUnreachableError(
                "the embedded broker is not running",
                remedies=["headrace broker start"],
                params={"directory": str(self.directory)},
            )
        return _admin_client(status.bootstrap)

    def _unreachable(self, reason: Any) -> BrokerUnreachableError:
        return BrokerUnreachableError(
            f"the embedded broker does not answer: {reason.str()}",
            facts=[f"log: {self.log_file}"],
            remedies=["headrace broker status", "headrace broker start"],
            params={"reason": reason.name()},
        )


def resolve_embedded(connection: KafkaConnection, directory: Path | None = None) -> KafkaConnection | None:
    """The connection with a real address; ``None`` where it means a broker that is down."""
    if not connection.is_embedded:
        return connection
    status = Broker(directory).status()
    if not status.running or status.bootstrap is None:
        return None
    return connection.with_bootstrap_servers(status.bootstrap)


def ensure_embedded(connection: KafkaConnection, directory: Path | None = None) -> KafkaConnection:
    """The connection with a real address; starts the embedded broker where it is meant and down."""
    if not connection.is_embedded:
        return connection
    return resolve_embedded(connection, directory) or connection.with_bootstrap_servers(
        Broker(directory).start()
    )


def _admin_client(bootstrap: str) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    # librdkafka would write to standard error while the broker is coming up.
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def _answers(bootstrap: str) -> bool:
    from confluent_kafka import KafkaException

    try:
        return len(_admin_client(bootstrap).list_topics(timeout=2.0).brokers) > 0
    except KafkaException:
        return False


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Kafka binds it: an old connection in TIME_WAIT does not keep it from the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
