"""The embedded broker: Apache Kafka in one process, for one machine; it runs until it is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from headrace import errors
from headrace.errors import did_you_mean
from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.broker_record import DATA, BrokerRecord, ProcessId
from headrace.runtime.broker_setup import (
    Ports,
    format_storage,
    java_command,
    java_variables,
    write_properties,
)
from headrace.runtime.broker_watch import LOCK, idle_minutes, note_use
from headrace.runtime.jvm import tail
from headrace.runtime.places import BROKER_VARIABLE, NAME_BROKER, OTHER_BROKER, broker_folder, is_locked
from headrace.runtime.processes import await_end, end, is_running, start_bound, start_detached

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
    memory_mb: int | None = None
    idle_minutes: float = 0  # minutes without clients after which it ends; 0: never

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
        # Links are resolved: if one were changed, the watcher would see a deleted folder.
        self.directory = (directory or broker_folder()).resolve()
        self._port = port
        self._bound = bound
        self._child: subprocess.Popen[bytes] | None = None
        self._properties = self.directory / "server.properties"
        self.log_file = self.directory / "server.log"
        self.data = self.directory / DATA

    def status(self) -> BrokerStatus:
        """Returns the present state; starts nothing."""
        record = self._record()
        if record is None:
            return BrokerStatus("stopped", self.directory, self.log_file)
        stopped = BrokerStatus("stopped", self.directory, self.log_file, record.bootstrap)
        process = record.broker.find()
        if process is None:
            return stopped
        with contextlib.suppress(psutil.Error):
            return replace(
                stopped,
                state="running" if _listens(_port(record.bootstrap)) else "starting",
                pid=process.pid,
                memory_mb=process.memory_info().rss // (1 << 20),
                idle_minutes=record.idle_minutes,
            )
        return stopped

    def start(self) -> str:
        """Starts the broker if it is stopped, waits until it answers, and returns its address."""
        try:
            with self._locked():
                return self._start_once()
        except OSError as error:
            status = self.status()
            if status.running and status.bootstrap is not None:
                return status.bootstrap
            raise self._unusable(
                f"{error.filename or self.directory} cannot be written: {error.strerror or error}",
                f"make the folder writable, or {NAME_BROKER}",
            ) from error

    def _start_once(self) -> str:
        note_use(self.directory)
        record = self._record()
        process = None if record is None else record.broker.find()
        if record is None or process is None:
            self._end_abandoned()
            if is_locked(self.data / ".lock", by_java=True):
                raise errors.BrokerRunningError(
                    "another process has the data of the embedded broker open, which this one does not see",
                    facts=[f"folder of the broker: {self.directory}", "nothing was changed"],
                    remedies=[
                        "stop it in the container or on the machine that runs it:   headrace broker stop",
                        f"or use another broker:   export {BROKER_VARIABLE}={OTHER_BROKER}",
                    ],
                    params={"path": str(self.directory)},
                )
            return self._start()
        bootstrap = record.bootstrap
        if self._port is not None and not bootstrap.endswith(f":{self._port}"):
            raise errors.BrokerRunningError(
                f"the embedded broker already runs on {bootstrap}, not on port {self._port}",
                facts=["nothing was changed"],
                remedies=[
                    "stop it:   headrace broker stop",
                    f"then start it on this port:   headrace broker start --port {self._port}",
                ],
                params={"bootstrap_servers": bootstrap, "port": self._port},
            )
        if not _listens(_port(bootstrap)):
            self._await_answer(bootstrap, process.pid)
        if record.watcher is not None and record.watcher.find() is None:
            # The watcher was killed. Without one, nothing ends an idle broker.
            watcher = self._start_watcher(process.pid, _port(bootstrap), record.idle_minutes * 60)
            replace(record, watcher=watcher).save(self.directory)
        return bootstrap

    def stop(self) -> bool:
        """Stops the broker and keeps its data; returns whether it was running."""
        if not self.directory.is_dir():
            return False
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(self._locked())
            if self._end_abandoned():
                return True
            record = self._record()
            if record is None or not _end_all(record):
                return False
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
                raise errors.TopicExistsError(
                    f"topic `{name}` exists; nothing was changed",
                    remedies=[
                        "use it as it is, or choose another name:   headrace broker topics create NAME"
                    ],
                    params={"topic": name},
                ) from error
            if reason.retriable() or reason.code() < 0:
                raise self._unreachable(reason) from error
            raise errors.UsageError(
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
        idle = idle_minutes()
        if "," in str(self.data):
            reason = "Kafka cannot use a folder with a comma in its path"
            raise self._unusable(reason, NAME_BROKER)
        ports = self._choose_ports()
        self._write_properties(ports)
        if not (self.data / "meta.properties").is_file():
            # `git add .` in the pipeline's folder leaves the records out.
            (self.directory / ".gitignore").write_text("*\n")
            format_storage(self._properties, self.log_file)
        command = [*java_command(self._properties, self.log_file), "kafka.Kafka", str(self._properties)]
        bootstrap = f"127.0.0.1:{ports.client}"
        try:
            pid = self._launch(command)
            record = BrokerRecord(broker=ProcessId.of(pid), bootstrap=bootstrap)
        except OSError as error:
            raise self._start_error(f"was not started: {error}") from error
        except psutil.NoSuchProcess as error:
            raise self._start_error("ended at once") from error
        record.save(self.directory)
        self._await_answer(bootstrap, pid)
        if idle and not self._bound:
            watcher = self._start_watcher(pid, ports.client, idle * 60)
            replace(record, watcher=watcher, idle_minutes=idle).save(self.directory)
        return bootstrap

    def _start_watcher(self, pid: int, port: int, idle_s: float) -> ProcessId:
        command = [sys.executable, "-m", "headrace.runtime.broker_watch"]
        command += [str(self.directory), str(pid), str(port), str(idle_s)]
        return ProcessId.of(start_detached(command, self.log_file))

    def _write_properties(self, ports: Ports) -> None:
        write_properties(self._properties, self.data, ports)

    def _launch(self, command: list[str]) -> int:
        if not self._bound:
            return start_detached(command, self.log_file, java_variables())
        self._child = start_bound(command, self.log_file, java_variables())
        return self._child.pid

    def _choose_ports(self) -> Ports:
        record = BrokerRecord.load(self.directory)
        # The clients of the folder that this one was copied from may still use its last port.
        is_copy = record is not None and not record.belongs_to(self.directory)
        last = None if is_copy else Ports.read(self._properties)
        if self._port is not None:
            if not _is_free(self._port):
                raise errors.BrokerPortInUseError(
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
        port = _port(bootstrap)
        while time.monotonic() < deadline:
            if not is_running(pid):
                raise self._start_error("ended while it was starting")
            if _listens(port) and _answers(bootstrap):
                return
            time.sleep(0.05)
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).kill()
            await_end(pid, 5)
        raise self._start_error(f"did not answer within {_START_TIMEOUT_S:.0f} s and was stopped")

    def _start_error(self, what: str) -> errors.BrokerStartError:
        return errors.BrokerStartError(
            f"the embedded broker {what}",
            facts=[*tail(self.log_file, 12), f"log: {self.log_file}"],
            remedies=["check the machine:   headrace doctor", "start it again:   headrace broker start"],
            params={"log": str(self.log_file)},
        )

    def _unusable(self, reason: str, remedy: str) -> errors.BrokerStartError:
        return errors.BrokerStartError(
            f"the embedded broker was not started: {reason}",
            facts=[f"folder of the broker: {self.directory}"],
            remedies=[
                remedy,
                f"or for the commands of this shell:   export {BROKER_VARIABLE}={OTHER_BROKER}",
            ],
            params={"path": str(self.directory)},
        )

    def _record(self) -> BrokerRecord | None:
        """The record of this folder's broker; the record in a copied folder is that of another broker."""
        record = BrokerRecord.load(self.directory)
        return record if record is not None and record.belongs_to(self.directory) else None

    def _end_abandoned(self) -> bool:
        """Ends the broker of a folder that was moved here. It would write to the old path."""
        record = BrokerRecord.load(self.directory)
        if record is None or record.belongs_to(self.directory) or not record.is_abandoned:
            return False
        return _end_all(record)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lets one process at a time start or stop the broker."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / LOCK).open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _admin(self) -> AdminClient:
        status = self.status()
        if status.bootstrap is None or not status.running:
            raise errors.BrokerUnreachableError(
                "the embedded broker is not running",
                remedies=["start it:   headrace broker start"],
                params={"path": str(self.directory)},
            )
        return admin_client(status.bootstrap)

    def _unreachable(self, reason: Any) -> errors.BrokerUnreachableError:
        return errors.BrokerUnreachableError(
            f"the embedded broker does not answer: {reason.str()}",
            facts=[f"log: {self.log_file}"],
            remedies=["see its state:   headrace broker status", "start it:   headrace broker start"],
            params={"reason": reason.name()},
        )


def resolve_embedded(connection: KafkaConnection) -> KafkaConnection | None:
    """Returns the connection with a real address, or None if the embedded broker is stopped."""
    if not connection.is_embedded:
        return connection
    broker = Broker(connection.broker)
    note_use(broker.directory)
    status = broker.status()
    if not status.running or status.bootstrap is None:
        return None
    return connection.with_bootstrap_servers(status.bootstrap)


def ensure_embedded(connection: KafkaConnection) -> KafkaConnection:
    """Returns the connection with a real address; starts the embedded broker if it is needed."""
    if not connection.is_embedded:
        return connection
    return connection.with_bootstrap_servers(Broker(connection.broker).start())


def _end_all(record: BrokerRecord) -> bool:
    """Ends a broker, and first its watcher; returns whether the broker was running."""
    for one in (record.watcher, record.broker):
        process = None if one is None else one.find()
        if process is None:
            continue
        try:
            process.terminate()
            if not await_end(process.pid, _STOP_TIMEOUT_S):
                process.kill()
                await_end(process.pid, _STOP_TIMEOUT_S)
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied as error:
            raise errors.BrokerRunningError(
                f"the embedded broker was started by the user {process.username()}, and was not stopped",
                remedies=["stop it as this user:   headrace broker stop"],
                params={"pid": process.pid},
            ) from error
    return process is not None


def topic_unknown(name: str, known: Sequence[str]) -> errors.TopicNotFoundError:
    return errors.TopicNotFoundError(
        f"the embedded broker has no topic `{name}`; nothing was changed",
        facts=[f"its topics: {', '.join(known)}"] if known else ["it has no topics"],
        remedies=did_you_mean(name, known, "list the topics:   headrace broker topics list"),
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


def _port(bootstrap: str) -> int:
    return int(bootstrap.rpartition(":")[2])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Kafka sets this option, too. With it, a connection in TIME_WAIT does not occupy the port.
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
