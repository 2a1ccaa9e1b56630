"""A pipeline that reads a folder of files, and everything that a test does with it."""

from __future__ import annotations

import gzip
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from disk import Disk
from headrace.errors import HeadraceError
from headrace.model.event_forms import Event
from headrace.model.events import FlowRetrying
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import VARIABLE, Point
from headrace.run.schedule import RunResult
from headrace.verify.report import Proof
from waiting import DEADLINE_S, until

VISITS = """
import headrace as hr

# So that Spark's log of files is compacted in few batches.
@hr.table(spark_conf={"spark.sql.streaming.fileSource.log.compactInterval": "3"})
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING"{more})
"""

_PACK: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": lambda content: bytes(pa.compress(content, codec="zstd", asbytes=True)),
}

READ = """
import headrace as hr

@hr.table
def visits():
    return hr.read_files(ARGUMENTS)
"""


class Site:
    """One pipeline in a folder of its own, which reads `landing` into the table `visits`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # The session's catalog is shared, so each pipeline has a schema of its own.
        self.database = f"site_{uuid.uuid4().hex[:8]}"
        self.landing = root / "landing"
        self.landing.mkdir(parents=True)
        self.write_spec()
        self.write()

    def write_spec(self, **more: Any) -> None:
        said = {"name": "site", "database": self.database, "libraries": [{"file": "visits.py"}]}
        (self.root / "headrace.yml").write_text(json.dumps({**said, **more}))

    def write(self, code: str = VISITS, more: str = "") -> None:
        (self.root / "visits.py").write_text(code.replace("{more}", more))

    def reads(self, arguments: str) -> None:
        """Let the table read what these arguments of `read_files` say."""
        self.write(READ.replace("ARGUMENTS", arguments))

    def write_reads(self, reads: dict[str, str]) -> None:
        """Declare a table for each read."""
        tables = (f"\n@hr.table\ndef {name}():\n    return hr.{read}\n" for name, read in reads.items())
        self.write(f"import headrace as hr\n{''.join(tables)}")

    def put(self, name: str, *rows: object) -> Path:
        """A file that appears whole, as it should."""
        path = self.landing / name
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = self.root / "staged"
        text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
        staged.write_bytes(_PACK.get(Path(name).suffix, bytes)(text.encode()))
        return staged.rename(path)

    @property
    def storage(self) -> Disk:
        return Disk(self.root / "lake")

    def name(self, table: str = "visits") -> TableName:
        return TableName(self.database, table)

    def rows(self, table: str = "visits") -> list[dict[str, Any]]:
        path = self.storage.table(self.name(table))
        rows: list[dict[str, Any]] = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
        return rows

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())

    def run(self, **remedies: Any) -> RunResult:
        with Pipeline.load(self.root) as pipeline:
            return pipeline.run(remedies=Remedies(**remedies))

    def run_well(self, **remedies: Any) -> RunResult:
        result = self.run(**remedies)
        assert result.outcome == "completed", [error.to_dict() for error in result.errors]
        return result

    def error(self, **remedies: Any) -> HeadraceError:
        """Run, and return the one error that it ends with."""
        try:
            errors = self.run(**remedies).errors
        except HeadraceError as error:
            return error
        assert len(errors) == 1, errors
        return errors[0]

    def verify(self) -> Proof:
        with Pipeline.load(self.root) as pipeline:
            return pipeline.verify()

    @contextmanager
    def held_at(self, point: Point, batch: int) -> Iterator[Held]:
        """A run in a thread that holds still at a point, until the block lets it go on, and ends."""
        held = Held(self.root / "markers" / point)
        held.marker.parent.mkdir(exist_ok=True)
        os.environ[VARIABLE] = f"{point}:{batch}:{held.marker.parent}"

        def work() -> None:
            with Pipeline.load(self.root) as pipeline:
                held.errors = list(pipeline.run(emit=held.events.append).errors)

        thread = threading.Thread(target=work, name="headrace-test-run")
        thread.start()
        try:
            yield held
        finally:
            held.go_on()
            thread.join(DEADLINE_S)
            os.environ.pop(VARIABLE, None)
            assert not thread.is_alive()


class Held:
    """A run that is held still."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker
        self.events: list[Event] = []
        self.errors: list[HeadraceError] = []

    def wait(self) -> None:
        until(self.marker.exists, f"the run reaches {self.marker.name}")

    def go_on(self) -> None:
        """Let it go on, and never hold it again."""
        os.environ.pop(VARIABLE, None)
        self.marker.unlink(missing_ok=True)

    @property
    def retries(self) -> list[FlowRetrying]:
        return [event for event in list(self.events) if isinstance(event, FlowRetrying)]
