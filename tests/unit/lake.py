"""A storage written by hand: real Parquet files and real Delta logs, and no JVM.

The commits are in the form that Headrace's writers give them; what a test wants to be wrong, it
says, or breaks afterwards on disk.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import struct
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from stores import At

from disk import Disk
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.storage.layout import Storage, locate
from headrace.verify.stored import LOCAL, Systems

FENCED = 2**63 - 1
COORDINATES = json.dumps(
    {"topic": "_source.topic", "partition": "_source.partition", "offset": "_source.offset"}
)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field(
            "_source",
            pa.struct(
                [
                    pa.field("topic", pa.string()),
                    pa.field("partition", pa.int32()),
                    pa.field("offset", pa.int64()),
                ]
            ),
        ),
    ]
)
SCHEMA_STRING = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {
                "name": "_source",
                "type": {
                    "type": "struct",
                    "fields": [
                        {"name": "topic", "type": "string", "nullable": True, "metadata": {}},
                        {"name": "partition", "type": "integer", "nullable": True, "metadata": {}},
                        {"name": "offset", "type": "long", "nullable": True, "metadata": {}},
                    ],
                },
                "nullable": True,
                "metadata": {},
            },
        ],
    }
)

Row = tuple[int, str | None, int | None, int | None]
"""id, topic, partition, offset."""


def rows(offsets: Iterable[int], partition: int = 0, topic: str = "sales") -> list[Row]:
    return [(offset, topic, partition, offset) for offset in offsets]


class Lake:
    """A storage and its tables."""

    def __init__(self, root: Path, at: At = locate) -> None:
        self.storage = Disk(root)
        self.settings = ProjectSettings(
            name="shop",
            file=root.parent / "headrace.yml",
            profile="dev",
            storage=Storage(at(root)),
            libraries=(),
            kafka=KafkaConnection({"bootstrap.servers": "127.0.0.1:9"}),
        )
        self.systems: Callable[[], Systems] = lambda: LOCAL
        self.nowhere = KafkaConnection({"bootstrap.servers": "127.0.0.1:9"})

    def table(self, name: str = "bronze", **settings: Any) -> LakeTable:
        return LakeTable(self.storage, TableName("default", name), **settings)


class LakeTable:
    """One table, written commit by commit."""

    def __init__(
        self,
        storage: Disk,
        name: TableName,
        *,
        kind: str = "streaming_table",
        coordinates: bool = True,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.storage, self.name = storage, name
        self.path = storage.table(name)
        self.log = self.path / "_delta_log"
        self.log.mkdir(parents=True)
        self.id = str(uuid.uuid4())
        self.version = -1
        self.properties: dict[str, str] = {
            "headrace.pipeline": "shop",
            "headrace.dataset": str(name),
            "headrace.kind": kind,
            **({"headrace.coordinates": COORDINATES} if coordinates else {}),
            **(properties or {}),
        }
        self.flows: dict[str, HandFlow] = {}
        self._numbers = itertools.count()
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        }
        self.commit([{"protocol": protocol}, self.metadata()], operation="CREATE TABLE")

    def flow(self, name: str | None = None, **opening: Any) -> HandFlow:
        flow = HandFlow(self, name or self.name.name)
        flow.open(**opening)
        return flow

    def metadata(self) -> dict[str, Any]:
        return {
            "metaData": {
                "id": self.id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": SCHEMA_STRING,
                "partitionColumns": [],
                "configuration": self.properties,
                "createdTime": 0,
            }
        }

    def commit(
        self,
        actions: Sequence[Mapping[str, Any]],
        *,
        operation: str = "STREAMING UPDATE",
        engine: str = "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
        metadata: Mapping[str, Any] | None = None,
        timestamp_ms: int | None = None,
        metrics: Mapping[str, str] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> int:
        self.version += 1
        info: dict[str, Any] = {
            "timestamp": timestamp_ms or int(time.time() * 1000),
            "operation": operation,
            "operationParameters": dict(parameters or {}),
            "engineInfo": engine,
        }
        if metrics is not None:
            info["operationMetrics"] = metrics
        if metadata is not None:
            info["userMetadata"] = json.dumps(metadata)
        lines = [{"commitInfo": info}, *actions]
        text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
        (self.log / f"{self.version:020d}.json").write_text(text + "\n", encoding="utf-8")
        return self.version

    def write(self, content: Sequence[Row], *, data_change: bool = True) -> dict[str, Any]:
        """Write a data file, and give its add action."""
        path = f"part-{next(self._numbers):05d}-{uuid.uuid4()}.c000.snappy.parquet"
        write_parquet(self.path / path, content)
        stat = (self.path / path).stat()
        offsets = [row[3] for row in content if row[3] is not None]
        stats = {
            "numRecords": len(content),
            "minValues": {"_source": {"offset": min(offsets)}} if offsets else {},
            "maxValues": {"_source": {"offset": max(offsets)}} if offsets else {},
            "nullCount": {"_source": {"offset": len(content) - len(offsets)}},
        }
        return {
            "add": {
                "path": path,
                "partitionValues": {},
                "size": stat.st_size,
                "modificationTime": stat.st_mtime_ns // 1_000_000,
                "dataChange": data_change,
                "stats": json.dumps(stats),
            }
        }

    def active(self) -> list[dict[str, Any]]:
        """The add actions of the snapshot."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for version in range(self.version + 1):
            file = self.log / f"{version:020d}.json"
            for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
                action = json.loads(line)
                if "remove" in action:
                    found.pop(_key(action["remove"]), None)
                if "add" in action:
                    found[_key(action["add"])] = action["add"]
        return list(found.values())

    def remove(self, add: Mapping[str, Any], *, data_change: bool = True) -> dict[str, Any]:
        removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": data_change}
        if "deletionVector" in add:
            removed["deletionVector"] = add["deletionVector"]
        return {"remove": removed}

    def delete(self, positions: Sequence[int], add: Mapping[str, Any], *, inline: bool = False) -> int:
        """A commit that marks rows of a file as deleted, by a deletion vector."""
        vector = self.vector(positions, inline=inline)
        marked = {**add, "deletionVector": vector, "dataChange": True}
        return self.commit([self.remove(add), {"add": marked}], operation="DELETE")

    def vector(self, positions: Sequence[int], *, inline: bool = False) -> dict[str, Any]:
        data = roaring(positions)
        size, padded = len(data), data + b"\0" * (-len(data) % 4)
        if inline:
            place, kind, offset = z85(padded), "i", None
        else:
            name = uuid.uuid4()
            file = self.path / f"deletion_vector_{name}.bin"
            file.write_bytes(b"\1" + struct.pack(">i", size) + data + struct.pack(">I", zlib.crc32(data)))
            place, kind, offset = z85(name.bytes), "u", 1
        found = {
            "storageType": kind,
            "pathOrInlineDv": place,
            "sizeInBytes": size,
            "cardinality": len(positions),
        }
        return found if offset is None else {**found, "offset": offset}

    def record_view(self) -> None:
        """What a refresh leaves in the ledger: the view has been created."""
        folder = self.storage.ledger(self.name, "view")
        folder.mkdir(parents=True)
        record = {"headrace": 1, "pipeline": "shop", "dataset": str(self.name), "table_id": self.id}
        (folder / "created.json").write_text(json.dumps(record), encoding="utf-8")

    def rewrite(self, adds: Sequence[Mapping[str, Any]], content: Sequence[Row]) -> int:
        """OPTIMIZE: other files, the same rows."""
        new = self.write(content, data_change=False)
        removed = [self.remove(add, data_change=False) for add in adds]
        return self.commit([*removed, new], operation="OPTIMIZE")

    def forget_log(self, until: int) -> None:
        """What log clean-up does: a checkpoint of the state at ``until``, and no commits before it."""
        from deltalake import DeltaTable

        DeltaTable(self.path, version=until).create_checkpoint()
        for version in range(until + 1):
            (self.log / f"{version:020d}.json").unlink(missing_ok=True)

    def fold(
        self,
        flow: str,
        first: int,
        last: int,
        entries: Sequence[Mapping[str, Any]],
        others: Sequence[Mapping[str, Any]] = (),
    ) -> Path:
        folder = self.storage.ledger(self.name, flow)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{first:020d}-{last:020d}.json"
        record = {
            "headrace": 1,
            "dataset": str(self.name),
            "flow": flow,
            "table_id": self.id,
            "versions": [first, last],
            "batches": list(entries),
            "others": list(others),
        }
        path.write_text(json.dumps(record), encoding="utf-8")
        return path


class HandFlow:
    """A flow that commits as Headrace's do."""

    def __init__(self, table: LakeTable, name: str, topic_id: str = "topic-1") -> None:
        self.table, self.name, self.topic_id = table, name, topic_id
        self.checkpoint = ""
        self.generation = 0
        self.batch = 0
        self.ends: dict[str, dict[str, int]] = {}
        self.said: list[dict[str, Any]] = []
        """What each commit says, with its version: what a ledger would hold."""

    @property
    def folder(self) -> Path:
        return self.table.storage.checkpoint(self.table.name, self.name, self.generation)

    def words(self, **more: Any) -> dict[str, Any]:
        return {
            "headrace": 1,
            "pipeline": self.table.properties["headrace.pipeline"],
            "flow": self.name,
            "checkpoint": self.checkpoint,
            **more,
        }

    def open(
        self,
        reason: str = "first",
        *,
        at: Mapping[str, Mapping[str, int]] | None = None,
        losses: Sequence[Mapping[str, Any]] = (),
        repeats: Sequence[Mapping[str, Any]] = (),
        recorded: bool = True,
        fence: bool = True,
        clear: bool = False,
        topic_id: str | None = None,
    ) -> int:
        """Open a generation; ``at`` seeds its batch 0 with positions."""
        old = self.checkpoint or None
        self.checkpoint = f"headrace-{uuid.uuid4().hex}"
        self.generation += 1
        self.batch = 0
        self.topic_id = topic_id or self.topic_id
        self.table.properties[f"headrace.checkpoint.{self.name}"] = self.checkpoint
        opens = {"generation": self.generation, "reason": reason, "fences": old, "losses": list(losses)}
        opens |= {"repeats": list(repeats)} if repeats else {}
        actions: list[dict[str, Any]] = [self.table.metadata()]
        if old and fence:
            actions.append({"txn": {"appId": old, "version": FENCED}})
        if clear:
            actions += [self.table.remove(add) for add in self.table.active()]
        if losses and recorded:
            folder = self.table.storage.ledger(self.table.name, self.name)
            folder.mkdir(parents=True, exist_ok=True)
            lost = [{"checkpoint": self.checkpoint, "generation": self.generation, **one} for one in losses]
            (folder / "losses.json").write_text(json.dumps(lost), encoding="utf-8")
        said = self.words(opens=opens)
        if at is not None:
            self.ends = {topic: dict(partitions) for topic, partitions in at.items()}
            said |= self._counts(0, 0, [self.source(at, at)])
            actions.append({"txn": {"appId": self.checkpoint, "version": 0}})
            self.batch = 1
        elif reason != "first":
            self.ends = {}
        self.write_identity()
        version = self.table.commit(actions, metadata=said)
        self.said.append({**said, "version": version, "timestamp": 1})
        return version

    def append(
        self,
        ranges: Mapping[int, tuple[int, int]],
        content: Sequence[Row] | None = None,
        *,
        batch: int | None = None,
        accepted: int | None = None,
        numbered: bool = True,
        topic: str = "sales",
        timestamp_ms: int | None = None,
    ) -> int:
        """Commit a batch: by default one row for each offset of its ranges."""
        number = self.batch if batch is None else batch
        self.batch = number + 1
        ends = self.ends.setdefault(topic, {})
        start = {topic: {**ends, **{str(p): low for p, (low, _) in ranges.items()}}}
        ends.update({str(p): high for p, (_, high) in ranges.items()})
        until = {topic: dict(ends)}
        if content is None:
            content = [r for p, (low, high) in ranges.items() for r in rows(range(low, high), p, topic)]
        return self.append_from(
            [self.source(start, until)],
            content,
            number=number,
            accepted=accepted,
            numbered=numbered,
            timestamp_ms=timestamp_ms,
        )

    def append_from(
        self,
        sources: Sequence[Mapping[str, Any]],
        content: Sequence[Row],
        *,
        number: int | None = None,
        accepted: int | None = None,
        quarantined: int = 0,
        numbered: bool = True,
        timestamp_ms: int | None = None,
    ) -> int:
        """Commit a batch with any ranges."""
        if number is None:
            number, self.batch = self.batch, self.batch + 1
        count = len(content) if accepted is None else accepted
        said = self._words_of_batch(number, count, sources)
        said.update(input=count + quarantined, quarantined=quarantined)
        actions = [self.table.write(content)] if content else []
        if numbered:
            actions.insert(0, {"txn": {"appId": self.checkpoint, "version": number}})
        version = self.table.commit(actions, metadata=said, timestamp_ms=timestamp_ms)
        self.said.append({**said, "version": version, "timestamp": 1})
        return version

    def source(self, start: Any, until: Any) -> dict[str, Any]:
        identity = {"topics": dict.fromkeys(until, self.topic_id)}
        return {"index": 0, "kind": "kafka", "identity": identity, "from": start, "until": until}

    def write_identity(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        identity = {
            "headrace": 1,
            "pipeline": self.table.properties["headrace.pipeline"],
            "flow": self.name,
            "dataset": str(self.table.name),
            "checkpoint": self.checkpoint,
            "generation": self.generation,
            "created": "2026-01-01T00:00:00+00:00",
            "table_id": self.table.id,
            "sources": [],
        }
        (self.folder / "headrace.json").write_text(json.dumps(identity), encoding="utf-8")

    def write_spark_log(self, batch: int, until: Any, *, finished: bool = True) -> None:
        """What Spark writes into the checkpoint for a batch."""
        for name in ("offsets", "commits"):
            (self.folder / name).mkdir(exist_ok=True)
        lines = ["v1", json.dumps({"batchWatermarkMs": 0}), json.dumps(until)]
        (self.folder / "offsets" / str(batch)).write_text("\n".join(lines), encoding="utf-8")
        if finished:
            (self.folder / "commits" / str(batch)).write_text("v1\n{}", encoding="utf-8")

    def _words_of_batch(self, number: int, count: int, sources: Sequence[Any]) -> dict[str, Any]:
        return self.words() | self._counts(number, count, sources)

    def _counts(self, number: int, count: int, sources: Sequence[Any]) -> dict[str, Any]:
        return {
            "batch": number,
            "input": count,
            "accepted": count,
            "quarantined": 0,
            "dropped": 0,
            "sources": list(sources),
        }


def write_parquet(path: Path, content: Sequence[Row]) -> None:
    places = [
        None if topic is None and offset is None else {"topic": topic, "partition": part, "offset": offset}
        for _, topic, part, offset in content
    ]
    table = pa.table({"id": [row[0] for row in content], "_source": places}, schema=SCHEMA)
    # Plain pages: rows of the same widths make files of the same size.
    pq.write_table(table, path, compression="none", use_dictionary=False)


def replace_file(path: Path, content: Sequence[Row], *, keep_age: bool = True) -> None:
    """Put other rows where a data file was, without telling the table."""
    stat = path.stat()
    write_parquet(path, content)
    if keep_age:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def roaring(positions: Sequence[int]) -> bytes:
    """A 64-bit Roaring bitmap, one array container for each 65,536 positions."""
    highs = sorted({position >> 32 for position in positions})
    data = struct.pack("<iq", 1681511377, len(highs))
    for high in highs:
        mine = sorted({position & 0xFFFFFFFF for position in positions if position >> 32 == high})
        keys = sorted({position >> 16 for position in mine})
        groups = [[position & 0xFFFF for position in mine if position >> 16 == key] for key in keys]
        data += struct.pack("<III", high, 12346, len(keys))
        data += b"".join(struct.pack("<HH", k, len(g) - 1) for k, g in zip(keys, groups, strict=True))
        at = 8 + 8 * len(keys)
        for group in groups:
            data += struct.pack("<I", at)
            at += 2 * len(group)
        data += b"".join(struct.pack(f"<{len(group)}H", *group) for group in groups)
    return data


def z85(data: bytes) -> str:
    alphabet = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    python = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    return base64.b85encode(data).translate(bytes.maketrans(python, alphabet)).decode("ascii")


def _key(action: Mapping[str, Any]) -> tuple[str, str]:
    vector = action.get("deletionVector")
    return (action["path"], "" if vector is None else vector["pathOrInlineDv"])


def edit(table: LakeTable, version: int, **words: Any) -> None:
    """Change what a commit says of itself."""
    path = table.log / f"{version:020d}.json"
    info, *actions = [json.loads(line) for line in path.read_text().splitlines()]
    said = json.loads(info["commitInfo"]["userMetadata"])
    info["commitInfo"]["userMetadata"] = json.dumps(said | words)
    path.write_text("\n".join(json.dumps(line) for line in [info, *actions]))
