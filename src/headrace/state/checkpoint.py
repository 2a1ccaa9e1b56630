"""A Spark checkpoint: its identity, which is written once at its creation, and its offset and commit logs.

Spark writes ``offsets/N`` before batch N starts, and ``commits/N`` after it has ended; a batch's
range is ``offsets/N`` against ``offsets/N-1``, and for N = 0 the start is in ``sources/<i>/0``.
"""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Self

from headrace import errors
from headrace.errors import INSTALL_NEWER, HeadraceError
from headrace.model.names import TableName
from headrace.model.ranges import Position
from headrace.model.texts import counted
from headrace.storage.layout import Storage
from headrace.storage.location import Location

FILE = "headrace.json"
QUERY = "headrace-query.json"
"""The file with the last query that used the checkpoint."""
RENAMING = "renaming.json"
"""The file in the folder of a flow's checkpoints while they are copied from the folder of its old name."""
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    index: int  # the number of the source in the query: its line in the offset log
    kind: str
    identity: Mapping[str, Any]
    # The number of its folder in the checkpoint's ``sources/``, if it is not ``index``: a source that the
    # query reads twice has one folder
    folder: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            **{name: value[name] for name in ("index", "kind", "identity")}, folder=value.get("folder")
        )

    def key(self, keys: Sequence[str]) -> str:
        """The kind with the values of some keys of the identity, or with all values for no key."""
        values = {key: self.identity.get(key) for key in keys or self.identity}
        return json.dumps([self.kind, values], sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        record = {"index": self.index, "kind": self.kind, "identity": dict(self.identity)}
        return record if self.folder is None else {**record, "folder": self.folder}


@dataclass(frozen=True, kw_only=True)
class CheckpointIdentity:
    pipeline: str
    flow: str
    dataset: str
    checkpoint: str = field(default_factory=lambda: f"headrace-{uuid.uuid4().hex}")
    generation: int
    table_id: str
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    sources: tuple[SourceIdentity, ...]
    sink: str | None = None  # the format of its target, if that is a sink that keeps the state of its flows

    def to_json(self) -> dict[str, Any]:
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        sources = [source.to_json() for source in self.sources]
        return {"headrace": FORMAT, **{k: v for k, v in named.items() if v is not None}, "sources": sources}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckpointIdentity:
        named = {one.name: value[one.name] for one in fields(cls) if one.name != "sink"}
        sources = tuple(map(SourceIdentity.from_json, value["sources"]))
        return cls(**{**named, "sources": sources, "sink": value.get("sink")})


@dataclass(frozen=True, kw_only=True)
class QueryRecord:
    """What is known of the last query that used a checkpoint."""

    fingerprint: str
    schema: Mapping[str, Any] | None = None  # its columns, as ``StructType.jsonValue()`` gives them
    skips_erasures: tuple[int, ...] = ()  # the sources that skip commits which only delete rows

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load_identity(checkpoint: Location) -> CheckpointIdentity:
    path = checkpoint / FILE
    try:
        value = path.read_json()
        if value["headrace"] > FORMAT:
            raise errors.StorageNewerError(
                f"the checkpoint {checkpoint} was written by a newer version of Headrace",
                facts=("nothing was read or written",),
                remedies=(INSTALL_NEWER,),
                params={"checkpoint": str(checkpoint), "format": value["headrace"]},
            )
        return CheckpointIdentity.from_json(value)
    except FileNotFoundError as error:
        raise errors.CheckpointForeignError(
            f"the checkpoint folder {checkpoint} has no headrace.json",
            facts=("another program wrote it, or the file was removed", "nothing was read or written"),
            remedies=(
                "move the folder out of the storage, then run again:   headrace run",
                "or restore headrace.json, if it was removed",
            ),
            params={"checkpoint": str(checkpoint)},
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(path, error) from error


def load_query(checkpoint: Location) -> QueryRecord | None:
    """The last query that used a checkpoint, or ``None`` if it is not known."""
    try:
        value = (checkpoint / QUERY).read_json()
        return QueryRecord(
            fingerprint=str(value["fingerprint"]),
            schema=value.get("schema"),
            skips_erasures=tuple(value.get("skips_erasures") or ()),
        )
    except HeadraceError:
        raise
    except (OSError, ValueError, LookupError, TypeError):
        return None


def folder_of(source: SourceIdentity) -> int:
    """The number of a source's folder in its checkpoint."""
    return source.index if source.folder is None else source.folder


def corrupt(path: Location, error: Exception) -> errors.CheckpointCorruptError:
    """The error for a checkpoint file that cannot be read; the flow adds its own remedy."""
    return errors.CheckpointCorruptError(
        f"a checkpoint file cannot be read: {path}",
        facts=(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}",),
        params={"path": str(path)},
    )


@contextmanager
def reading(path: Location) -> Iterator[None]:
    """Raise the error for a checkpoint file that cannot be read in place of its cause. A store that fails, or
    refuses the access, has errors of its own."""
    try:
        yield
    except HeadraceError:
        raise
    except (OSError, ValueError) as error:
        raise corrupt(path, error) from error


def generations(flow_checkpoints: Location) -> tuple[Location, ...]:
    """Return the flow's checkpoints, oldest first.

    A process that is killed while it creates one can leave a folder without any file, which is none. So are
    checkpoints that are still copied.
    """
    entries = flow_checkpoints.entries()
    if any(entry.name == RENAMING for entry in entries):
        return ()
    numbers = sorted(entry.name for entry in entries if entry.is_folder and entry.name.isdigit())
    folders = (flow_checkpoints / name for name in numbers)
    return tuple(folder for folder in folders if (folder / FILE).exists() or _has_content(folder))


def copy_checkpoints(old: Location, new: Location, identity: CheckpointIdentity) -> None:
    """Copy the checkpoints of a flow to the folder of its new name, the newest one with another identity.
    They are valid from the last step on."""
    discard_checkpoints(new)
    marker = new / RENAMING
    marker.replace_json({"from": old.name})
    newest = generations(old)[-1]
    for file in old.walk():
        if file != newest / FILE:
            file.copy(new / "/".join(file.below(old)))
    (new / newest.name / FILE).replace_json(identity.to_json())
    marker.delete()


def discard_checkpoints(flow_checkpoints: Location) -> None:
    """Remove all checkpoints of a flow; after a crash, `tidy_renamed` removes the rest."""
    marker, known = flow_checkpoints / RENAMING, generations(flow_checkpoints)
    last = known[-1] / FILE if known else marker
    for file in flow_checkpoints.walk():
        if file != last:
            file.delete()
    flow_checkpoints.delete_folder()


def tidy_renamed(flow_checkpoints: Location, declared: Collection[str], current: str | None) -> None:
    """Remove the rest of an interrupted rename: a part of the copy, or the old folder.

    `current`: the id of the checkpoint that the target has under this flow's name. Without it, the rename is
    not committed, or the flow has its old name again: no other folder is touched.
    """
    if (flow_checkpoints / RENAMING).exists():
        discard_checkpoints(flow_checkpoints)
    if current is None or _newest_id(flow_checkpoints) != current:
        return
    for name in flow_checkpoints.parent.list_folders():
        if name != flow_checkpoints.name and name not in declared:
            old = flow_checkpoints.parent / name
            if _newest_id(old) == current:
                discard_checkpoints(old)


def _newest_id(flow_checkpoints: Location) -> str | None:
    known = generations(flow_checkpoints)
    try:
        return load_identity(known[-1]).checkpoint if known else None
    except HeadraceError:
        return None


def find_checkpoints(storage: Storage) -> Iterator[tuple[TableName, str, tuple[Location, ...]]]:
    """The flows of a storage with checkpoints: the table, the flow, and its checkpoints, oldest first."""
    root, files = storage.root / "checkpoints", storage.root.files
    datasets = root.list_folders()
    flows = files.gather(lambda dataset: (root / dataset).list_folders(), datasets)
    both = [(dataset, flow) for dataset, names in zip(datasets, flows, strict=True) for flow in names]
    found = files.gather(lambda one: generations(root / one[0] / one[1]), both)
    for (dataset, flow), known in zip(both, found, strict=True):
        if known:
            yield TableName.parse(dataset, dataset), flow, known


def _has_content(folder: Location) -> bool:
    # A hidden file is one that was not written to its end.
    return bool(folder.list_folders()) or any(not name.startswith(".") for name in folder.list_files())


def write_checkpoint(checkpoint: Location, identity: CheckpointIdentity, seed: Mapping[str, str]) -> None:
    """Create a checkpoint: first its identity. The next start removes one that was left unfinished."""
    file = checkpoint / FILE
    if not file.create_json(identity.to_json()):
        raise _taken(file)
    # The last one first: Spark's offset log makes the checkpoint look like one that has planned a batch.
    for name, text in reversed(list(seed.items())):
        if not (checkpoint / name).create(text):
            raise _taken(checkpoint / name)


def _taken(file: Location) -> errors.StorageUnwritableError:
    return file.unwritable(FileExistsError(errno.EEXIST, "another process has written a checkpoint there"))


_VERSION = "v1"
_UNSET = "-"
"""Spark's mark for a source that has no offset yet."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SEEDED_MS = 0
"""The timestamp of a batch that Headrace has written; Spark's batches have the time of the clock."""


@dataclass(frozen=True)
class LogState:
    """The last batches of a checkpoint; -1 before the first batch."""

    last_planned: int
    last_finished: int


def load_state(checkpoint: Location) -> LogState:
    """The last batch that Spark planned, and the last that it finished."""
    return LogState(_last(checkpoint / "offsets"), _last(checkpoint / "commits"))


def offsets_path(checkpoint: Location, batch: int) -> Location:
    """The file of Spark's offset log with the end of a batch."""
    return checkpoint / "offsets" / str(batch)


def load_offsets(checkpoint: Location, batch: int) -> tuple[str | None, ...]:
    """The position of each source at the end of a batch, in the order of Spark's offset log."""
    path = offsets_path(checkpoint, batch)
    with reading(path):
        lines = path.read_text().splitlines()
        if len(lines) < 3 or lines[0] != _VERSION:
            raise ValueError(f"it is cut off, or not an offset log: it has {counted(len(lines), 'line')}")
    return tuple(None if line == _UNSET else line for line in lines[2:])


def check_readable(checkpoint: Location) -> None:
    """Check the small files that Spark reads when it continues with a checkpoint."""
    planned, finished = _last(checkpoint / "offsets"), _last(checkpoint / "commits")
    if planned > 0:
        # Spark computes the range of the last batch from the one before.
        load_offsets(checkpoint, planned - 1)
    for path, first in (
        (checkpoint / "metadata", 0),
        *([(checkpoint / "commits" / str(finished), 1)] if finished >= 0 else []),
    ):
        with reading(path):
            try:
                lines = path.read_text().splitlines()
            except FileNotFoundError:
                # Spark makes new ones for a query that has planned nothing yet, and refuses any other.
                if planned >= 0 and path.name == "metadata":
                    raise
                continue
            if first and lines[:1] != [_VERSION]:
                raise ValueError(f"unknown version {lines[:1]}")
            json.loads("\n".join(lines[first:]))


def seed_files(
    positions: Mapping[int, Position], sources: Sequence[SourceIdentity], shuffle_partitions: str
) -> dict[str, str]:
    """The files of a checkpoint whose batch 0 has ended at ``positions``, in Spark's format. A source without
    a position starts at its beginning."""
    # When Spark repeats a batch, it fails if the batch before has no number of shuffle partitions.
    conf = {SHUFFLE_PARTITIONS: shuffle_partitions}
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": _SEEDED_MS, "conf": conf}
    return {
        "offsets/0": offset_lines(metadata, positions, sources),
        "commits/0": f"{_VERSION}\n{json.dumps({'nextBatchWatermarkMs': 0})}",
        # Spark refuses a checkpoint that has offsets and no id of its own.
        "metadata": json.dumps({"id": str(uuid.uuid4())}),
    }


def offset_lines(
    metadata: Mapping[str, Any], positions: Mapping[int, Position], sources: Sequence[SourceIdentity]
) -> str:
    """The text of a file of the offset log. Its second line has the watermark, the time and the settings of
    the batch."""
    lines = [_VERSION, json.dumps(metadata)]
    lines += [
        positions[source.index].to_text() if source.index in positions else _UNSET for source in sources
    ]
    return "\n".join(lines)


def is_seeded(checkpoint: Location) -> bool:
    """Whether `seed_files` has written batch 0, and not Spark."""
    try:
        lines = (checkpoint / "offsets" / "0").read_text().splitlines()
        return bool(json.loads(lines[1])["batchTimestampMs"] == _SEEDED_MS)
    except HeadraceError:
        raise
    except (OSError, ValueError, LookupError):
        return False


def _last(folder: Location) -> int:
    return max((int(name) for name in folder.list_files() if name.isdigit()), default=-1)
