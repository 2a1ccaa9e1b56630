"""The tables that must be in the storage: checkpoints, the ledger and the last plan name them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.model.names import TableName
from headrace.verify.checkpoints import IDENTITY, read_json
from headrace.verify.commits import PROPERTY_DATASET, PROPERTY_PIPELINE
from headrace.verify.evidence import Evidence
from headrace.verify.report import DatasetProof, Finding, GradeReport
from headrace.verify.stored import Storage, StoredPath

NamedIn = Literal["checkpoint", "ledger", "plan"]


@dataclass(frozen=True)
class ExpectedTable:
    """A table that a pipeline has made, or is about to make."""

    name: TableName
    named_in: frozenset[NamedIn]  # what in the storage names it. A plan is made before its tables
    table_ids: frozenset[str] = frozenset()  # delta's ids of the table, by the newest checkpoint of each flow
    sink: str | None = None  # the format of the sink that has the rows and the batches in place of a table

    @property
    def was_made(self) -> bool:
        """Whether the table has existed: checkpoints and ledgers are written after their table."""
        return bool(self.named_in & {"checkpoint", "ledger"})

    @property
    def named_by(self) -> str:
        names = {"checkpoint": "its checkpoint", "ledger": "its ledger", "plan": "the last plan"}
        return _joined([names[place] for place in sorted(self.named_in)])

    @property
    def remains(self) -> str:
        """What still exists of a table that is gone, as a sentence."""
        text = f"{self.named_by} still {'exist' if len(self.named_in) > 1 else 'exists'}"
        return text[:1].upper() + text[1:]


def _joined(names: Sequence[str]) -> str:
    """``a``, ``a and b``, or ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def load_expected(storage: Storage, pipeline: str) -> dict[TableName, ExpectedTable]:
    """Find the tables of a pipeline; to be read before the tables."""
    named_in: dict[TableName, set[NamedIn]] = {}
    ids: dict[TableName, set[str]] = {}
    sinks: dict[TableName, str] = {}
    for name, identity in _newest_checkpoints(storage.root / "checkpoints"):
        if identity.get("pipeline", pipeline) == pipeline:
            named_in.setdefault(name, set()).add("checkpoint")
            if "table_id" in identity:
                ids.setdefault(name, set()).add(str(identity["table_id"]))
            if "sink" in identity:
                sinks[name] = str(identity["sink"])
    for name, owner in _ledgers(storage.root / "ledger"):
        if owner in (None, pipeline):
            named_in.setdefault(name, set()).add("ledger")
    # A pipeline in the storage, as of `headrace ingest`, has a plan of its own.
    for plan in (storage.root / "plans").list_files():
        if plan.name.endswith("last.json"):
            for name in _planned(storage.root / "plans" / plan.name, pipeline):
                named_in.setdefault(name, set()).add("plan")
    return {
        name: ExpectedTable(name, frozenset(found), frozenset(ids.get(name, ())), sinks.get(name))
        for name, found in named_in.items()
    }


def is_of_pipeline(evidence: Evidence) -> bool:
    """Whether a pipeline made the table: its properties say so, or a commit does."""
    commits = evidence.metadata
    return PROPERTY_DATASET in evidence.log.metadata.properties or bool(
        commits.batches or commits.openings or commits.refreshes
    )


def find_replacement(evidence: Evidence, expected: ExpectedTable | None, pipeline: str) -> Finding | None:
    if expected is None:
        return None
    owner = evidence.log.metadata.properties.get(PROPERTY_PIPELINE, pipeline)
    if not is_of_pipeline(evidence):
        text = f"no pipeline has written this table, but {expected.named_by} names it: it was replaced"
    elif owner != pipeline:
        text = f"pipeline {owner} has written this table, but {expected.named_by} names it: it was replaced"
    elif expected.table_ids and evidence.log.metadata.id not in expected.table_ids:
        text = "its checkpoint belongs to another table: the table was replaced"
    else:
        return None
    place = {"dataset": str(evidence.dataset), "table_id": evidence.log.metadata.id}
    return Finding(code="TABLE_REPLACED", text=text, place=place)


def prove_missing(storage: Storage, expected: ExpectedTable, why: str | None = None) -> DatasetProof:
    """The report of a table that does not exist any more, or of a sink that has the rows in its place. `why`:
    why the sink was not read."""
    if expected.sink is not None:
        text = f"not checked: {why or f'the {expected.sink} sink has the rows and the batches'}"
        return replace(prove_unread(expected.name, text), kind="sink")
    folder = storage.root.relative(str(storage.table(expected.name)))
    finding = Finding(
        code="TABLE_MISSING",
        text=f"the table {expected.name.short} is gone: {folder} has no Delta log. {expected.remains}",
        place={"dataset": str(expected.name)},
    )
    leftovers = " and ".join(f"{storage.root}/{part}/{expected.name}" for part in ("checkpoints", "ledger"))
    note = (
        f"read it again: headrace full-refresh {expected.name.short}; if it was removed on purpose, remove "
        f"its declaration, run the pipeline once, and delete {leftovers}"
    )
    return replace(prove_unread(expected.name, "missing", finding), notes=(note,))


def prove_unread(
    name: TableName, text: str, finding: Finding | None = None, *, applies: bool = True
) -> DatasetProof:
    """The report of a table that cannot be judged, because of a finding if there is one."""
    table = GradeReport(
        grade="counts",
        verdict="refuted" if finding else "unjudged",
        text=text,
        findings=(finding,) if finding else (),
        applies=applies,
    )
    return DatasetProof(dataset=name, kind="unknown", version=-1, table=table)


def _newest_checkpoints(root: StoredPath) -> Iterator[tuple[TableName, Mapping[str, Any]]]:
    """The identity of each flow's newest checkpoint; empty where it cannot be read."""
    for flow in _flows(root):
        generations = [path for path in flow.list_folders() if path.name.isdigit()]
        if generations:
            newest = max(generations, key=lambda path: int(path.name))
            yield _name(flow.parent.name), read_json(newest / IDENTITY)


def _ledgers(root: StoredPath) -> Iterator[tuple[TableName, str | None]]:
    """Each dataset with a ledger, and the pipeline that wrote the newest entry if an entry has one."""
    for flow in _flows(root):
        files = [file.name for file in flow.list_files() if file.name.endswith(".json")]
        if files:
            folds = [name for name in files if name[0].isdigit()]
            newest = read_json(flow / (folds[-1] if folds else files[0]))
            entries = [newest, *(newest.get("batches") or ())]
            owners = [entry["pipeline"] for entry in entries if "pipeline" in entry]
            yield _name(flow.parent.name), owners[-1] if owners else None


def _planned(path: StoredPath, pipeline: str) -> Iterator[TableName]:
    """The tables of the last plan; none where it cannot be read, for it is only a record of a run."""
    plan = read_json(path)
    if plan.get("pipeline", pipeline) != pipeline:
        return
    for key, field in (("flows", "dataset"), ("views", "view")):
        for entry in plan.get(key, ()):
            with contextlib.suppress(KeyError, TypeError):
                yield TableName(*entry[field])


def _flows(root: StoredPath) -> Iterator[StoredPath]:
    return (flow for dataset in root.list_folders() for flow in dataset.list_folders())


def _name(folder: str) -> TableName:
    schema, _, name = folder.partition(".")
    return TableName(schema, name)
