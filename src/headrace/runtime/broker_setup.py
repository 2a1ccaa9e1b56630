"""The embedded broker's settings, its command lines and the formatting of its data folder."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from headrace.errors import BrokerStartError
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.ivy import spark_jars_folder
from headrace.runtime.java import find_java
from headrace.runtime.jvm import tail

_HEAP = "256m"


@dataclass(frozen=True)
class Ports:
    """The broker's ports on 127.0.0.1, where the whole world of an embedded broker is.

    Args:
        secured: Those of its secured listeners, by their names.
    """

    client: int
    controller: int
    secured: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, properties: Path) -> Ports | None:
        """The ports of the last start."""
        try:
            listeners = re.search(r"^listeners=(.*)$", properties.read_text(), re.MULTILINE)
        except OSError:
            return None
        found = dict(re.findall(r"(\w+)://127\.0\.0\.1:(\d+)", listeners[1] if listeners else ""))
        ports = {name: int(port) for name, port in found.items()}
        if not {"PLAINTEXT", "CONTROLLER"} <= ports.keys():
            return None
        return cls(ports.pop("PLAINTEXT"), ports.pop("CONTROLLER"), ports)

    @property
    def listeners(self) -> str:
        all_of_them = {"PLAINTEXT": self.client, "CONTROLLER": self.controller, **self.secured}
        return ",".join(f"{name}://127.0.0.1:{port}" for name, port in all_of_them.items())

    def advertised(self, host: str) -> str:
        """The addresses that clients are sent to; ``host`` is the one of the secured listeners."""
        secured = [f"{name}://{host}:{port}" for name, port in self.secured.items()]
        return ",".join([f"PLAINTEXT://127.0.0.1:{self.client}", *secured])


def write_properties(
    file: Path, data: Path, ports: Ports, host: str = "localhost", security: Mapping[str, str] | None = None
) -> None:
    """Write ``server.properties`` for one node that is broker and controller.

    Args:
        file: The file.
        data: Where the records lie.
        ports: The ports of its listeners.
        host: The host that clients of secured listeners are sent to.
        security: The settings of secured listeners.
    """
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": ports.listeners,
        "advertised.listeners": ports.advertised(host),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{ports.controller}",
        "log.dirs": str(data),
        # Groups and transactions on one node.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # After a crash the controller holds the place of the broker that died for this long.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "1000",
        # A misspelt topic is an error, not a new topic.
        "auto.create.topics.enable": "false",
        # Its user decides when records go: a topic's own `retention.ms` does it.
        "log.retention.ms": "-1",
        "num.partitions": "1",
        # A topic that is made again at once must not meet the files of the old one.
        "log.segment.delete.delay.ms": "1000",
        # A machine of two cores needs no 8 + 3 + 10 threads.
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        **(security or {}),
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    unfinished = file.with_suffix(".new")
    unfinished.touch(0o600)  # passwords of secured listeners are among them
    unfinished.write_text("\n".join(lines) + "\n")
    unfinished.replace(file)


def build_start_command(properties: Path, log_file: Path) -> list[str]:
    """The command line of the broker."""
    return [*_java_command(properties, log_file), "kafka.Kafka", str(properties)]


def format_storage(properties: Path, log_file: Path) -> None:
    """Prepare an empty data folder.

    Raises:
        BrokerStartError: Kafka's own tool refused it.
    """
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    command = [*_java_command(properties, log_file), "kafka.tools.StorageTool", "format"]
    # In one word: an id may begin with `-`, and would be taken for an option.
    command += [f"--cluster-id={cluster}", "--config", str(properties), "--ignore-formatted"]
    with log_file.open("ab") as log:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode != 0:
        raise BrokerStartError(
            "the embedded broker's data folder could not be prepared",
            facts=[*tail(log_file, 12), f"log: {log_file}"],
            remedies=["headrace doctor"],
            params={"log_file": str(log_file), "exit_code": done.returncode},
        )


def _java_command(properties: Path, log_file: Path) -> list[str]:
    java = find_java()
    # Unpacked native libraries, which a killed broker would leave behind.
    temporary = properties.parent / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    log4j = resources.files("headrace.runtime").joinpath("broker.log4j2.properties")
    return [
        str(java.executable),
        f"-Xmx{_HEAP}",
        "-Xms64m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        f"-Djava.io.tmpdir={temporary}",
        f"-Dlog4j2.configurationFile={log4j}",
        f"-Dheadrace.log.file={log_file}",
        "-cp",
        _class_path(),
    ]


def _class_path() -> str:
    """Kafka's jars, with PySpark's bridge from slf4j to log4j: Kafka's own set has none, and logs nothing."""
    kafka = [jar for jar in ensure_jars("broker") if not jar.name.startswith("org.slf4j_")]
    bridge = [
        jar
        for pattern in ("slf4j-api-*.jar", "log4j-slf4j2-impl-*.jar")
        for jar in sorted(spark_jars_folder().glob(pattern))
    ]
    return os.pathsep.join(map(str, [*bridge, *kafka]))
