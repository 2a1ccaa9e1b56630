"""Healthy pipelines, each in a folder of its own, on which situations make their mistakes."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import deltalake
import pyarrow as pa
from confluent_kafka import Producer

from conftest import PASSWORD, forget_tables
from disk import Disk
from headrace.model.names import TableName
from headrace.runtime.broker import Broker
from secured_broker import SecuredBroker

Rows = dict[str, Any]
"""What tables hold, by name; in the form that the kind of pipeline compares."""


class Folder(ABC):
    """A pipeline, its sources, and what its tables must hold.

    Args:
        root: Its folder.
        broker: The broker of all tests; None for a pipeline without topics.
    """

    files: ClassVar[dict[str, str]]

    def __init__(self, root: Path, broker: Broker | None = None) -> None:
        self.root = root
        self.broker = broker
        # The session's catalog is shared, and one pipeline at a time is used.
        forget_tables()
        self.database = "default"
        self.prepare()
        self.write("headrace.yml", self.spec())
        for path, text in self.files.items():
            self.write(path, text.replace("{topic}", self.topic))

    topic: str = ""

    def spec(self) -> str:
        return "name: walk\nstorage: ./lake\n"

    @abstractmethod
    def prepare(self) -> None:
        """Make the sources."""

    @abstractmethod
    def rows(self) -> Rows: ...

    @abstractmethod
    def expected(self) -> Rows: ...

    # Files.

    def read(self, path: str) -> str | None:
        file = self.root / path
        return file.read_text(encoding="utf-8") if file.is_file() else None

    def write(self, path: str, text: str | None) -> None:
        file = self.root / path
        if text is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    # The storage.

    @property
    def storage(self) -> Disk:
        return Disk(self.root / "lake")

    def name(self, table: str) -> TableName:
        return TableName(self.database, table)

    def table(self, table: str) -> Path:
        return self.storage.table(self.name(table))

    def checkpoint(self, flow: str, table: str | None = None) -> Path:
        """The newest checkpoint of a flow."""
        folder = self.storage.flow_checkpoints(self.name(table or flow), flow)
        return max(path for path in folder.iterdir() if path.name.isdigit())

    def next_batch(self, flow: str, table: str | None = None) -> int:
        planned = (self.checkpoint(flow, table) / "offsets").iterdir()
        return max(int(file.name) for file in planned if file.name.isdigit()) + 1

    def select(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The sorted values of columns; also of a table with deletion vectors."""
        found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(self.table(table))))
        read = pa.table(found.execute(f"SELECT {', '.join(columns)} FROM t").read_all())
        return sorted(tuple(row.values()) for row in read.to_pylist())


class FilesFolder(Folder):
    """Reads a folder of JSON files into the table `visits`, and counts them in the view `pages`."""

    files: ClassVar = {
        "transformations/visits.py": (
            "import headrace as hr\n\n\n@hr.table\ndef visits():\n"
            '    return hr.read_files("landing", format="json", schema="id LONG, page STRING")\n'
        ),
        "transformations/pages.sql": (
            "CREATE OR REFRESH MATERIALIZED VIEW pages AS\n"
            "SELECT page, count(*) AS visits FROM visits GROUP BY page;\n"
        ),
    }

    def prepare(self) -> None:
        self.ids: list[int] = []
        self.count = -1
        (self.root / "landing").mkdir(parents=True)
        self.put(3)

    def put(self, count: int = 1) -> Path:
        """A file of visits that appears whole."""
        new = range(len(self.ids), len(self.ids) + count)
        self.ids += new
        rows = [{"id": number, "page": f"p{number % 2}"} for number in new]
        # Never the name of an earlier file: a stream does not read a path a second time.
        self.count += 1
        return self.put_text(f"{self.count:04d}.json", "".join(json.dumps(row) + "\n" for row in rows))

    def put_text(self, name: str, text: str) -> Path:
        staged = self.root / "staged"
        staged.write_text(text)
        return staged.rename(self.root / "landing" / name)

    def correct(self, file: Path) -> str:
        """Write a new visit in place of a file's bad record, and return what was done."""
        number = len(self.ids)
        self.ids.append(number)
        file.write_text(f'{{"id": {number}, "page": "p{number % 2}"}}\n')
        return f"landing/{file.name} gets the record {number} instead"

    def rows(self) -> Rows:
        return {"visits": self.select("visits", "id"), "pages": self.select("pages", "page", "visits")}

    def expected(self) -> Rows:
        pages = Counter(f"p{number % 2}" for number in self.ids)
        return {"visits": sorted((number,) for number in self.ids), "pages": sorted(pages.items())}


class ChangesFolder(Folder):
    """Applies change records of a folder to the table `latest`, by their ids."""

    files: ClassVar = {
        "transformations/latest.py": (
            "import headrace as hr\n\n\n@hr.temporary_view\ndef changes():\n"
            '    return hr.read_files("landing", format="json", schema="id LONG, name STRING, seq LONG")'
            "\n\n\n"
            'hr.create_streaming_table("latest")\n'
            'hr.create_auto_cdc_flow(target="latest", source="changes", keys=["id"], sequence_by="seq")\n'
        )
    }

    def prepare(self) -> None:
        self.changes: list[tuple[int, str]] = []
        self.by_name = False  # whether the name is a key too
        self.sequence = 0
        (self.root / "landing").mkdir(parents=True)
        self.put(1, "a")
        self.put(2, "b")

    def put(self, key: int, name: str) -> None:
        """A file with one change."""
        self.sequence += 1
        self.changes.append((key, name))
        staged = self.root / "staged"
        staged.write_text(json.dumps({"id": key, "name": name, "seq": self.sequence}) + "\n")
        staged.rename(self.root / "landing" / f"{self.sequence:04d}.json")

    def rows(self) -> Rows:
        return {"latest": self.select("latest", "id", "name")}

    def expected(self) -> Rows:
        latest = {change if self.by_name else change[0]: change for change in self.changes}
        return {"latest": sorted(latest.values())}


class SnapshotsFolder(Folder):
    """Makes the table `prices` equal to one snapshot after another."""

    files: ClassVar = {
        "transformations/prices.py": (
            'import headrace as hr\n\nhr.create_streaming_table("prices")\n'
            'hr.create_auto_cdc_from_snapshot_flow("prices", "./given", ["item"])\n'
        )
    }

    def prepare(self) -> None:
        self.prices: dict[str, int] = {}
        self.give("1.json", {"pen": 1, "cup": 2})

    def give(self, name: str, prices: dict[str, int]) -> None:
        """Add a snapshot."""
        self.prices = prices
        lines = (json.dumps({"item": item, "price": price}) for item, price in prices.items())
        self.write(f"given/{name}", "".join(f"{line}\n" for line in lines))

    def rows(self) -> Rows:
        return {"prices": self.select("prices", "item", "price")}

    def expected(self) -> Rows:
        return {"prices": sorted(self.prices.items())}


class TopicFolder(Folder):
    """Reads a topic into the table `orders`, and its large ones into the table `big`."""

    files: ClassVar = {
        "transformations/orders.py": (
            "import headrace as hr\nfrom headrace import spark\n\n\n@hr.table\ndef orders():\n"
            '    return hr.read_kafka("{topic}", format="json", schema="id LONG, amount DOUBLE")\n\n\n'
            "@hr.table\ndef big():\n"
            '    return spark.readStream.table("orders").where("amount >= 2").select("id", "amount")\n'
        )
    }

    def spec(self) -> str:
        return f"{super().spec()}kafka:\n  bootstrap.servers: {self.bootstrap}\n"

    def prepare(self) -> None:
        assert self.broker is not None
        # Of the listener without a login, if the broker has several.
        self.bootstrap = self.broker.start()
        self.topic = f"walk-{uuid.uuid4().hex[:8]}"
        self.ids: list[int] = []
        self.broker.create_topic(self.topic, 1)
        self.produce(3)

    def send(self, *values: str | bytes) -> None:
        """Send records as they are."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(30) == 0

    def produce(self, count: int = 1) -> None:
        """Send orders, which the tables must have then."""
        new = range(len(self.ids), len(self.ids) + count)
        self.send(*(json.dumps({"id": number, "amount": number % 4}) for number in new))
        self.ids += new

    def rows(self) -> Rows:
        return {"orders": self.select("orders", "id"), "big": self.select("big", "id")}

    def expected(self) -> Rows:
        every = sorted(self.ids)
        return {"orders": [(one,) for one in every], "big": [(one,) for one in every if one % 4 >= 2]}


class SecuredFolder(TopicFolder):
    """Reads a topic of a broker that asks for a login."""

    def spec(self) -> str:
        assert isinstance(self.broker, SecuredBroker)
        return (
            f"{Folder.spec(self)}kafka:\n"
            f"  bootstrap.servers: {self.broker.address('SASL_SSL')}\n"
            "  security.protocol: SASL_SSL\n"
            "  sasl.mechanism: SCRAM-SHA-512\n"
            "  sasl.username: shop\n"
            "  sasl.password: ${WALK_PASSWORD}\n"
            f"  ssl.ca.location: {self.broker.authority}\n"
        )

    def prepare(self) -> None:
        super().prepare()
        password = PASSWORD.replace("\\", "\\\\")
        self.write(".env", f"WALK_PASSWORD='{password}'\n")


KINDS: dict[str, Callable[[Path, Broker | None], Folder]] = {
    "files": FilesFolder,
    "changes": ChangesFolder,
    "snapshots": SnapshotsFolder,
    "topic": TopicFolder,
    "secured": SecuredFolder,
}
"""The pipelines that situations name."""

BROKERS = {"topic": "broker", "secured": "secured_broker"}
"""The fixtures of the brokers, by kind."""
