"""The embedded broker: Apache Kafka in one process, for one machine; it runs until it is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from headrace.errors import (
    BrokerPortInUseError,
    BrokerRunningError,
    BrokerStartError,
    BrokerUnreachableError,
    TopicExistsError,
    TopicNotFoundError,
    UsageError,
    did_you_mean,
)
from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.broker_setup import Ports, format_storage, java_command, write_properties
from headrace.runtime.jvm import tail
from headrace.runtime.places import broker_folder, replace_file
from headrace.runtime.processes import end, is_running, start_bound, start_detached

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

VERSION = "4.3.0"

_START_TIMEOUT_S = 60.0  # A start takes 3 s, or longer after a crash, when Kafka checks every segment
_STOP_TIMEOUT_S = 20.0
_REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class BrokerStatus:
    state: str  # ``running``, ``stopped``, or ``starting`` if its process exists and does not listen yet
    directory: Path  # the folder of its state, data and log
    log_file: Path
    # Its address, or its last address if it is stopped; `None` before the first start.
    bootstrap: str | None = None
    pid: int | None = None
    started: float | None = None
    memory_mb: int | None = None

    @property
    def running(self) -> bool:
        return self.state == "running"


@dataclass(frozen=True)
class Topic:
    name: str
    id: str
    partitions: int
    # The number of offsets from the start to the end of its partitions; transaction markers and compaction
    # make the number of records smaller.
    records: int


class Broker:
    """The embedded broker in one folder.

    `directory`: the folder of its state, data and log; by default that of commands without a pipeline.
    `port`: the port for clients; by default that of the last start, or a free one.
    `bound`: whether the broker ends with this process; for tests.
    """

    def __init__(
        self, directory: Path | None = None, *, port: int | None = None, bound: bool = False
    ) -> None:
        self.directory = (directory or broker_folder()).absolute()
        self._port = port
        self._bound = bound
        self._child: subprocess.Popen[bytes] | None = None
        self._state_file = self.directory / "broker.json"
        self._properties = self.directory / "server.properties"
        self.log_file = self.directory / "server.log"
        self.data = self.directory / "data"

    def status(self) -> BrokerStatus:
        """Returns the present state; starts nothing."""
        known = self._read_state()
        process = self._find_process(known)
        bootstrap = known.get("bootstrap")
        stopped = BrokerStatus("stopped", self.directory, self.log_file, bootstrap)
        if process is None:
            return stopped
        listening = bootstrap is not None and _listens(int(bootstrap.rsplit(":", 1)[1]))
        with contextlib.suppress(psutil.Error):
            return replace(
                stopped,
                state="running" if listening else "starting",
                pid=process.pid,
                started=known.get("started"),
                memory_mb=process.memory_info().rss // (1 << 20),
            )
        return stopped

    def start(self) -> str:
        """Starts the broker if it is stopped, waits until it answers, and returns its address."""
        with self._locked():
            known = self._read_state()
            process = self._find_process(known)
            if process is None:
                return self._start()
            bootstrap: str = known["bootstrap"]
            if self._port is not None and not bootstrap.endswith(f":{self._port}"):
                raise BrokerRunningError(
                    f"the embedded broker already runs on {bootstrap}, not on port {self._port}",
                    facts=["nothing was changed"],
                    remedies=["headrace broker stop", f"headrace broker start --port {self._port}"],
                    params={"bootstrap": bootstrap, "port": self._port},
                )
            self._await_answer(bootstrap, process.pid)
            return bootstrap

    def stop(self) -> bool:
        """Stops the broker and keeps its data; returns whether it was running."""
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
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(name, partitions, 1, config=dict(config or {}))
        # The open requests of a client end when it is garbage-collected.
        admin = self._admin()
        try:
            admin.create_topics([wanted], request_timeout=_REQUEST_TIMEOUT_S)[name].result()
        except KafkaException as error:
            reason: Any = error.args[0]
            if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExistsError(
                    f"topic `{name}` exists; nothing was changed",
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
        """Returns all topics by name, without Kafka's internal topics."""
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

    def find_topic(self, name: str) -> Topic:
        topics = {one.name: one for one in self.list_topics()}
        if name not in topics:
            raise topic_unknown(name, tuple(topics))
        return topics[name]

    def delete_topic(self, name: str) -> None:
        from confluent_kafka import KafkaError, KafkaException

        admin = self._admin()
        try:
            admin.delete_topics([name], request_timeout=_REQUEST_TIMEOUT_S)[name].result()
        except KafkaException as error:
            reason: Any = error.args[0]
            if reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise topic_unknown(name, ()) from error
            raise self._unreachable(reason) from error

    def _start(self) -> str:
        ports = self._choose_ports()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_properties(ports)
        if not (self.data / "meta.properties").is_file():
            format_storage(self._properties, self.log_file)
        command = [*java_command(self._properties, self.log_file), "kafka.Kafka", str(self._properties)]
        try:
            pid = self._launch(command)
        except OSError as error:
            raise self._start_error(f"was not started: {error}") from error
        bootstrap = f"127.0.0.1:{ports.client}"
        self._write_state(pid, bootstrap)
        self._await_answer(bootstrap, pid)
        return bootstrap

    def _write_properties(self, ports: Ports) -> None:
        write_properties(self._properties, self.data, ports)

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
                    remedies=[
                        "stop that program, or let Headrace choose a free port:   headrace broker start"
                    ],
                    params={"port": self._port},
                )
            client = self._port
        else:
            # Clients may still use the last port.
            client = last.client if last is not None and _is_free(last.client) else free_port()
        controller = last.controller if last is not None and _is_free(last.controller) else free_port()
        return Ports(client, controller)

    def _await_answer(self, bootstrap: str, pid: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        port = int(bootstrap.rsplit(":", 1)[1])
        while time.monotonic() < deadline:
            if not is_running(pid):
                raise self._start_error("ended while it was starting")
            if _listens(port) and _answers(bootstrap):
                return
            time.sleep(0.05)
        self._end(pid)
        raise self._start_error(f"did not answer within {_START_TIMEOUT_S:.0f} s and was stopped")

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
        replace_file(self._state_file, json.dumps(state).encode())

    def _read_state(self) -> dict[str, Any]:
        try:
            found = json.loads(self._state_file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and {"pid", "started", "bootstrap"} <= found.keys() else {}

    def _find_process(self, known: Mapping[str, Any]) -> psutil.Process | None:
        try:
            process = psutil.Process(known["pid"])
            same = abs(process.create_time() - known["started"]) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (KeyError, psutil.Error):
            return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lets one process at a time start or stop the broker."""
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
        return admin_client(status.bootstrap)

    def _unreachable(self, reason: Any) -> BrokerUnreachableError:
        return BrokerUnreachableError(
            f"the embedded broker does not answer: {reason.str()}",
            facts=[f"log: {self.log_file}"],
            remedies=["headrace broker status", "headrace broker start"],
            params={"reason": reason.name()},
        )


def resolve_embedded(connection: KafkaConnection) -> KafkaConnection | None:
    """Returns the connection with a real address, or None if the embedded broker is stopped."""
    if not connection.is_embedded:
        return connection
    status = Broker(connection.broker).status()
    if not status.running or status.bootstrap is None:
        return None
    return connection.with_bootstrap_servers(status.bootstrap)


def ensure_embedded(connection: KafkaConnection) -> KafkaConnection:
    """Returns the connection with a real address; starts the embedded broker if it is needed."""
    if not connection.is_embedded:
        return connection
    return resolve_embedded(connection) or connection.with_bootstrap_servers(
        Broker(connection.broker).start()
    )


def topic_unknown(name: str, known: Sequence[str]) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"the embedded broker has no topic `{name}`; nothing was changed",
        facts=[f"its topics: {', '.join(known)}"] if known else ["it has no topics"],
        remedies=did_you_mean(name, known) or ["headrace broker topics list"],
        params={"topic": name, "known": list(known)},
    )


def admin_client(bootstrap: str) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    # librdkafka would write to standard error while the broker starts.
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def _answers(bootstrap: str) -> bool:
    from confluent_kafka import KafkaException

    try:
        return len(admin_client(bootstrap).list_topics(timeout=2.0).brokers) > 0
    except KafkaException:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Kafka binds it: a connection in TIME_WAIT does not occupy the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
