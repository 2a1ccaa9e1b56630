"""The embedded broker's settings, its command lines, and the formatting of its data folder."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from headrace.errors import BrokerStartError
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import find_java, locale_variables, spark_jars_folder
from headrace.runtime.jvm import tail
from headrace.runtime.places import replace_file

_HEAP = "256m"


@dataclass(frozen=True)
class Ports:
    client: int
    controller: int

    @classmethod
    def read(cls, properties: Path) -> Ports | None:
        try:
            found = re.search(
                r"^listeners=PLAINTEXT://127\.0\.0\.1:(\d+),CONTROLLER://127\.0\.0\.1:(\d+)",
                properties.read_text(),
                re.MULTILINE,
            )
        except OSError:
            return None
        return cls(int(found[1]), int(found[2])) if found else None


def write_properties(file: Path, data: Path, ports: Ports) -> None:
    """Writes ``server.properties`` for one node that is broker and controller."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{ports.client},CONTROLLER://127.0.0.1:{ports.controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports.client}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{ports.controller}",
        "log.dirs": str(data),
        # Consumer groups and transactions on one node.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # After a crash the controller keeps the old registration of the broker for this time.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "1000",
        # A misspelled topic must be an error, not a new topic.
        "auto.create.topics.enable": "false",
        # Records are kept unless a topic has a `retention.ms`.
        "log.retention.ms": "-1",
        "num.partitions": "1",
        # A topic that is created again at once must not find the files of the old one.
        "log.segment.delete.delay.ms": "1000",
        # A machine of two cores needs no 8 + 3 + 10 threads.
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
    }
    # Java reads `\u00fc` as in JSON, and takes bytes beyond ASCII for other letters.
    lines = [f"{key}={json.dumps(value)[1:-1]}" for key, value in settings.items()]
    replace_file(file, "\n".join(lines) + "\n")


def format_storage(properties: Path, log_file: Path) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    command = [*java_command(properties, log_file), "kafka.tools.StorageTool", "format"]
    # As one argument: an id that begins with `-` would be an option.
    command += [f"--cluster-id={cluster}", "--config", str(properties), "--ignore-formatted"]
    with log_file.open("ab") as log:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=java_variables(),
            check=False,
        )
    if done.returncode != 0:
        raise BrokerStartError(
            "the embedded broker's data folder could not be formatted",
            facts=[*tail(log_file, 12), f"log: {log_file}"],
            remedies=["check the machine:   headrace doctor"],
            params={"log": str(log_file), "exit_code": done.returncode},
        )


def java_variables() -> dict[str, str]:
    return {**os.environ, **locale_variables()}


def java_command(properties: Path, log_file: Path) -> list[str]:
    java = find_java()
    # For unpacked native libraries, which a killed broker would leave behind.
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
    """Returns Kafka's jars with PySpark's bridge from slf4j to log4j: without it Kafka logs nothing."""
    kafka = [jar for jar in ensure_jars("broker") if not jar.name.startswith("org.slf4j_")]
    bridge = [
        jar
        for pattern in ("slf4j-api-*.jar", "log4j-slf4j2-impl-*.jar")
        for jar in sorted(spark_jars_folder().glob(pattern))
    ]
    return os.pathsep.join(map(str, [*bridge, *kafka]))
