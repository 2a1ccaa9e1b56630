"""A pipeline that reads a Kinesis stream, and everything that a test does with it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake

from disk import Disk
from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.project.pipeline import Pipeline
from headrace.run.schedule import RunResult
from kinesis_server import KinesisServer

CLICKS = """
import headrace as hr

@hr.table
def clicks():
    return hr.read_kinesis("STREAM", format="json", schema="id LONG"{more})
"""


class StreamSite:
    """One pipeline in a folder of its own, which reads a stream into the table `clicks`."""

    def __init__(self, root: Path, server: KinesisServer, shards: int = 2) -> None:
        self.root = root
        self.server = server
        # The session's catalog and the server are shared, so each pipeline has names of its own.
        self.database = f"clicks_{uuid.uuid4().hex[:8]}"
        self.stream = self.database
        root.mkdir(parents=True, exist_ok=True)
        server.create(self.stream, shards)
        self.put_ids: list[int] = []
        self.write_spec()
        self.write()

    def write_spec(self, **more: Any) -> None:
        spec = {
            "name": "site",
            "database": self.database,
            "storage": "./lake",
            "kinesis": self.server.settings,
            "libraries": [{"file": "clicks.py"}],
        }
        (self.root / "headrace.yml").write_text(json.dumps({**spec, **more}))

    def write(self, code: str = CLICKS, more: str = "") -> None:
        (self.root / "clicks.py").write_text(code.replace("STREAM", self.stream).replace("{more}", more))

    def put(self, count: int) -> None:
        """Put records with the next ids, each with a key of its own."""
        ids = range(len(self.put_ids), len(self.put_ids) + count)
        self.server.put(self.stream, *((f"key-{one}", json.dumps({"id": one}).encode()) for one in ids))
        self.put_ids += ids

    def run(self, **remedies: Any) -> RunResult:
        with Pipeline.load(self.root) as pipeline:
            return pipeline.run(remedies=Remedies(**remedies))

    def run_well(self, **remedies: Any) -> None:
        result = self.run(**remedies)
        assert result.outcome == "completed", [error.to_dict() for error in result.errors]

    def error(self, **remedies: Any) -> HeadraceError:
        """Run, and return the one error that the run ends with."""
        try:
            (error,) = self.run(**remedies).errors
        except HeadraceError as raised:
            return raised
        assert isinstance(error, HeadraceError)
        return error

    def refusal(self) -> HeadraceError:
        """Plan, and return the one error that the plan finds."""
        try:
            with Pipeline.load(self.root) as pipeline:
                (error,) = pipeline.plan().refusals
        except HeadraceError as raised:
            return raised
        return error

    # -- what others see

    @property
    def storage(self) -> Disk:
        return Disk(self.root / "lake")

    @property
    def table(self) -> Path:
        return self.storage.table(TableName(self.database, "clicks"))

    def rows(self, *columns: str) -> list[Mapping[str, Any]]:
        table = deltalake.DeltaTable(self.table).to_pyarrow_table(columns=list(columns) or None)
        return list(table.to_pylist())

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows("id"))

    def holds(self, count: int) -> bool:
        """Whether the table is there and has as many rows."""
        return deltalake.DeltaTable.is_deltatable(str(self.table)) and len(self.ids()) == count

    def commits(self) -> list[Mapping[str, Any]]:
        """The metadata of the batches, the oldest first."""
        history = deltalake.DeltaTable(self.table).history()
        metadata = [json.loads(commit["userMetadata"]) for commit in history if "userMetadata" in commit]
        return [one for one in reversed(metadata) if "input" in one and "opens" not in one]

    def verdicts(self) -> dict[str, str]:
        """What `verify` says of the flow, by grade."""
        return {grade: one["verdict"] for grade, one in self.proof()["grades"].items()}

    def proof(self) -> Mapping[str, Any]:
        with Pipeline.load(self.root) as pipeline:
            proof = pipeline.verify().to_json()
        (flow,) = next(one for one in proof["datasets"] if one["dataset"].endswith(".clicks"))["flows"]
        found: Mapping[str, Any] = flow
        return found

    def check(self) -> None:
        """Check that each record is there once, and that `verify` proves it."""
        assert self.ids() == self.put_ids
        assert self.verdicts() == {"ranges": "proven", "counts": "proven", "records": "proven"}
