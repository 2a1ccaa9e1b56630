"""The record of an embedded broker's processes, and what its data folder holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from headrace.runtime.places import BROKER_VARIABLE, chosen_folder, replace_file, shared_broker_folder

NAME = "broker.json"
DATA = "data"


@dataclass(frozen=True)
class ProcessId:
    """A process id with the time of its start: the system uses process ids again."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


@dataclass(frozen=True, kw_only=True)
class BrokerRecord:
    broker: ProcessId
    bootstrap: str
    folder: Path | None = None  # the folder when the broker was started; earlier versions did not record it
    watcher: ProcessId | None = None
    idle_minutes: float = 0  # minutes without clients after which the broker ends; 0: never

    @classmethod
    def load(cls, folder: Path) -> BrokerRecord | None:
        try:
            found: dict[str, Any] = json.loads((folder / NAME).read_text())
            watcher = found.get("watcher")
            return cls(
                broker=ProcessId(found["pid"], found["started"]),
                bootstrap=found["bootstrap"],
                folder=Path(found["folder"]) if "folder" in found else None,
                watcher=watcher and ProcessId(**watcher),
                idle_minutes=found.get("idle_minutes", 0),
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def save(self, folder: Path) -> None:
        record = {
            **asdict(self.broker),
            "bootstrap": self.bootstrap,
            "folder": str(folder),
            "watcher": self.watcher and asdict(self.watcher),
            "idle_minutes": self.idle_minutes,
        }
        replace_file(folder / NAME, json.dumps(record))

    def belongs_to(self, folder: Path) -> bool:
        """Whether the broker was started in this folder; the record of a copied or moved folder was not."""
        if self.folder is None:
            return True
        try:
            return self.folder.samefile(folder)
        except OSError:
            return False

    @property
    def is_abandoned(self) -> bool:
        """Whether the folder in which the broker was started is gone, or has another broker."""
        if self.folder is None:
            return False
        there = BrokerRecord.load(self.folder)
        return there is None or there.broker != self.broker


def has_data(folder: Path) -> bool:
    return (folder / DATA / "meta.properties").is_file()


def find_in_shared(topics: Iterable[str], broker: Path | None) -> tuple[list[str], list[str]]:
    """The fact and the remedy for topics that a pipeline's embedded broker does not have, and the shared one
    has. `broker`: the folder of the pipeline's embedded broker."""
    shared = shared_broker_folder()
    if broker in (None, shared, chosen_folder(BROKER_VARIABLE)) or not has_data(shared):
        return [], []
    held = topic_ids(shared)
    found = [topic for topic in topics if topic in held]
    if not found:
        return [], []
    names = " and ".join(f"`{topic}`" for topic in found)
    return (
        [
            "this pipeline has a broker of its own; the shared broker of commands outside of pipelines has "
            f"{names}: {shared}"
        ],
        [f"to use the shared broker, write in the spec:   runtime: {{broker: {shared}}}"],
    )


def topic_ids(folder: Path) -> dict[str, str]:
    """The topics that a broker holds, without Kafka's own, with their ids."""
    found = {}
    for file in (folder / DATA).glob("*-0/partition.metadata"):
        name = file.parent.name.removesuffix("-0")
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(": ")
            if key == "topic_id" and not name.startswith("__"):
                # Checkpoints have the ids as librdkafka writes them, with `+` and `/`.
                found[name] = value.replace("-", "+").replace("_", "/")
    return found
