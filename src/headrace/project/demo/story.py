"""The demo from beginning to end: broker, pipeline, producer, crash, restart, quarantine, replay, proof."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from headrace.declare.spec import load_project
from headrace.errors import DemoDriverError
from headrace.model.event_forms import Event
from headrace.model.events import BatchCommitted, BatchReplayed, FlowStarted
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.observe.display import open_display
from headrace.project.demo.driver import Crash, Driver, await_batch, look_at_crash
from headrace.project.demo.folder import DemoFolder, TableWatch, check_empty, write_demo
from headrace.project.demo.producer import REFUNDS, Comparison, SalesProducer, compare, load_gold
from headrace.storage.location import Location

if TYPE_CHECKING:
    from headrace.verify.report import Proof

TOPIC = "sales"
PARTITIONS = 4
FLOW = "bronze"  # the flow that is watched and killed in a batch: the one that reads the topic
REJECTING = "silver"  # the table that rejects sales that are not positive, until its expectation is corrected
_EXPECTED, _CORRECTED = '"positive sales", "sales > 0"', '"a sale or a refund", "sales <> 0"'

_FIRST = 0.05
"""The share of the records that is written before the first commit. The first batch is slow; with more
records, the rest of the demo would be one large batch."""
_CRASH_AT = 0.4
_CRASH_AT_LATEST = (0.6, 0.7, 0.8, 0.9, 0.95)
"""The producer waits at each of these shares of the records until the driver is killed. The first kill may
come from `_CRASH_AT` on; each further one follows a kill that was not inside a batch."""
_CRASH_AFTER_BATCHES = 3
_BATCH_TIMEOUT_S = 60.0
_WAIT_TIMEOUT_S = 180.0
_IDLE_TIMEOUT_S = 60.0
"""Seconds without a new commit after which the demo stops waiting; the proof names missing records."""
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    folder: DemoFolder
    settings: ProjectSettings
    producer: SalesProducer  # records, sums, names and dates of the producer's ledger
    crashes: tuple[Crash, ...]  # every SIGKILL; if one hit a batch, it is the last
    replay: str | None  # what the restarted process did with the interrupted batch
    drained: bool  # whether the tables have received all records of the producer
    rejected: int  # the rows that were in the quarantine at the end of the run
    replayed: int  # the rows that were replayed, after the expectation was corrected
    proof: Proof
    comparison: Comparison
    duration_s: float

    @property
    def gold(self) -> TableName:
        return _name(self.settings, "gold")

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def faults(self) -> list[str]:
        records, comparison, found = self.producer.ledger.records, self.comparison, []
        if not self.crashes[-1].inside_batch:
            found.append(f"the driver was killed {len(self.crashes)} times, but never during a batch")
        if not self.drained:
            found.append(f"the tables did not receive all {records:,} records in time")
        if not self.replayed == self.rejected == REFUNDS:
            found.append(
                f"{self.rejected} of {REFUNDS} refunds were rejected, and {self.replayed} were replayed"
            )
        if not self.proof.proven:
            found.append(f"`headrace verify` has {len(self.proof.findings)} findings")
        if not comparison.equal:
            wrong = len(comparison.differences) + len(comparison.doubled)
            found.append(
                f"gold differs from the sums of the producer in {wrong} of {len(comparison.rows)} rows"
            )
        return found


class Screen:
    """Shows the demo as it goes, and its flows as `headrace run` does; called from several threads. `stream`:
    ``None`` shows nothing, for JSON."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream
        self._display = None if stream is None else open_display(stream, "default")
        self._is_watching = False

    def fact(self, title: str, text: str) -> None:
        self.note(f"{title:<12}  {text}")

    def doing(self, text: str) -> None:
        self.note(f"{datetime.now().astimezone():%H:%M:%S}  {text} …")

    def note(self, text: str) -> None:
        if self._is_watching and self._display is not None:
            self._display.note(text)
        elif self._stream is not None:
            self._stream.write(text + "\n")
            self._stream.flush()

    def event(self, event: Event) -> None:
        if self._display is not None:
            self._display(event)

    def killed(self) -> None:
        """Show that the pipeline's process has ended."""
        if self._display is not None:
            board = self._display.board
            rows = {name: replace(row, state="waiting", recent=()) for name, row in board.rows.items()}
            self._display.board = replace(board, rows=rows)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Show the flows while the block runs."""
        with self._display or nullcontext():
            self._is_watching = True
            try:
                yield
            finally:
                self._is_watching = False


@dataclass
class _Witness:
    """The events of the driver; written by its thread, read by the demo."""

    screen: Screen
    started: threading.Event = field(default_factory=threading.Event)
    batches: int = 0
    watched: int | None = None
    replay: str | None = None

    def restart(self, crashed: int) -> None:
        self.started.clear()
        self.batches = 0
        self.watched = crashed

    def __call__(self, event: Event) -> None:
        self.screen.event(event)
        match event:
            case FlowStarted(flow=flow) if flow == FLOW:
                self.started.set()
            case BatchReplayed(flow=flow, batch=batch) if flow == FLOW and batch == self.watched:
                self._tell(f"batch {batch} of {FLOW} was in the table already; it was not written again")
            case BatchCommitted(flow=flow, batch=batch, rows=rows) if flow == FLOW:
                self.batches += 1 if rows else 0
                if batch == self.watched:
                    self._tell(f"batch {batch} of {FLOW} was not in the table; it was read again")
            case _:
                pass

    def _tell(self, text: str) -> None:
        self.watched = None
        self.replay = text
        self.screen.note(f"✓ {text}")


@dataclass
class Demo:
    directory: Path
    records: int
    rate: int
    screen: Screen
    files: Mapping[str, str]
    storage: Location | None = None  # ``None`` for the folder of the tables in the demo's own folder

    def __post_init__(self) -> None:
        self._witness = _Witness(self.screen)
        self._driver: Driver | None = None

    def run(self) -> DemoResult:
        """Run the demo; all processes have ended when this returns or raises."""
        from headrace.project.pipeline import Pipeline

        began = time.monotonic()
        with ExitStack() as stack:
            folder = self._write_folder()
            stack.callback(shutil.rmtree, folder.scratch, ignore_errors=True)
            settings = self._start_broker(folder, stack)
            records = self.records
            producer = SalesProducer(
                settings.kafka,
                TOPIC,
                records=records,
                rate=self.rate,
                pauses=[int(records * share) for share in (_FIRST, *_CRASH_AT_LATEST)],
            )
            # Last in, first out: the driver ends before the producer, and both before the broker.
            stack.callback(producer.stop)
            stack.callback(self._kill_driver)
            with self.screen.watching():
                self._start_driver(folder)
                producer.start()
                crashes = self._crash(folder, settings, producer)
                drained = self._drain(settings, producer)
                self.screen.doing("stopping the pipeline")
                if self._driver is not None:
                    self._driver.stop()
                    self._driver = None
                rejected, replayed = self._replay(folder, settings)
            proof = Pipeline(settings).verify()
            gold = load_gold(settings.storage.table(_name(settings, "gold")))
            return DemoResult(
                folder=folder,
                settings=settings,
                producer=producer,
                crashes=crashes,
                replay=self._witness.replay,
                drained=drained,
                rejected=rejected,
                replayed=replayed,
                proof=proof,
                comparison=compare(gold, producer.ledger.entries),
                duration_s=time.monotonic() - began,
            )

    def _write_folder(self) -> DemoFolder:
        if self.storage is not None:
            check_empty(self.storage)
        folder = write_demo(self.directory, self.files)
        self.screen.fact("Pipeline", f"{folder.path}   bronze → silver → gold   (you can edit it)")
        if self.storage is not None:
            self.screen.fact("Storage", str(self.storage))
        return folder

    def _start_broker(self, folder: DemoFolder, stack: ExitStack) -> ProjectSettings:
        from headrace.runtime.broker import VERSION, Broker
        from headrace.runtime.fetch import ensure_jars

        # All jars now, with progress: the process of the pipeline shows none.
        is_local = self.storage is None or self.storage.is_local
        ensure_jars("spark", "broker", *(() if is_local else ("s3",)))
        broker = Broker(folder.broker)
        stack.callback(broker.stop)
        servers = broker.start()
        broker.create_topic(TOPIC, PARTITIONS)
        self.screen.fact(
            "Broker", f"Apache Kafka {VERSION} on {servers}, topic {TOPIC}, {PARTITIONS} partitions"
        )
        settings = load_project(folder.path)
        kafka = replace(settings.kafka.with_bootstrap_servers(servers), broker=folder.broker)
        return replace(settings, kafka=kafka)

    def _start_driver(self, folder: DemoFolder) -> None:
        self.screen.doing("starting Spark")
        self._driver = Driver(
            folder.path, environment=_environment(folder), log_file=folder.driver_log, emit=self._witness
        )
        self._wait(self._witness.started.is_set, None, "it did not start a flow")

    def _crash(
        self, folder: DemoFolder, settings: ProjectSettings, producer: SalesProducer
    ) -> tuple[Crash, ...]:
        """Kill the process in the middle of a batch; repeat if the batch had just ended."""
        bronze = _name(settings, FLOW)
        crashes: list[Crash] = []
        self.screen.doing("producing records and processing them")
        self._wait(lambda: self._witness.batches >= 1, producer, "it committed no batch")
        producer.go_on()
        self._wait(lambda: self._is_time(producer), producer, "it committed too few batches")
        while not (crashes and crashes[-1].inside_batch) and len(crashes) < len(_CRASH_AT_LATEST):
            # Records come now, so there will be a batch.
            producer.go_on()
            assert self._driver is not None
            await_batch(settings.storage, bronze, FLOW, timeout_s=_BATCH_TIMEOUT_S, check=self._driver.check)
            self._driver.kill()
            self.screen.killed()
            crash = look_at_crash(settings.storage, bronze, FLOW)
            crashes.append(crash)
            self._witness.restart(crash.planned)
            self.screen.note(crash_text(crash))
            self._start_driver(folder)
        producer.finish()
        return tuple(crashes)

    def _is_time(self, producer: SalesProducer) -> bool:
        """Whether to kill the process now: after about half of the records and several batches."""
        written, batches = producer.ledger.records, self._witness.batches
        if written >= int(producer.records * _CRASH_AT_LATEST[0]):
            return batches >= 1
        return written >= int(producer.records * _CRASH_AT) and batches >= _CRASH_AFTER_BATCHES

    def _drain(self, settings: ProjectSettings, producer: SalesProducer) -> bool:
        """Wait until the tables hold all records of the producer; ``False`` after a timeout."""
        self.screen.doing("draining the topic")
        watch = TableWatch(
            settings.storage,
            streams=(_name(settings, "bronze"), _name(settings, "silver")),
            view=_name(settings, "gold"),
        )
        last, moved = None, time.monotonic()
        while time.monotonic() - moved < _IDLE_TIMEOUT_S:
            now = watch.look()
            records = producer.ledger.records
            if producer.done and watch.holds(records, records - REFUNDS):
                return True
            if now != last:
                last, moved = now, time.monotonic()
            self._check(producer)
            time.sleep(_POLL_S)
        return False

    def _replay(self, folder: DemoFolder, settings: ProjectSettings) -> tuple[int, int]:
        """Correct the expectation, and replay what it has rejected: the rejected and the replayed rows."""
        from headrace.project.pipeline import Pipeline

        self.screen.doing("replaying the rejected rows")
        with Pipeline(settings) as pipeline:
            (summary,) = pipeline.quarantine.list([REJECTING])
            rejected = summary.states.get("quarantined", 0)
            self.screen.note(f"{rejected} refunds are in the quarantine of {REJECTING}: sales > 0 fails")
            file = folder.path / "transformations" / f"{REJECTING}.py"
            file.write_text(file.read_text(encoding="utf-8").replace(_EXPECTED, _CORRECTED), encoding="utf-8")
            done = pipeline.quarantine.replay(REJECTING)
            text = f"✓ {done.replayed} of them replayed, after the expectation was corrected to sales <> 0"
            self.screen.note(text)
            # The view has them, too.
            pipeline.run(["gold"], emit=self.screen.event)
        return rejected, done.replayed

    def _wait(self, condition: Callable[[], bool], producer: SalesProducer | None, otherwise: str) -> None:
        deadline = time.monotonic() + _WAIT_TIMEOUT_S
        while not condition():
            self._check(producer)
            if time.monotonic() > deadline:
                raise DemoDriverError(
                    f"the process of the pipeline was stopped: {otherwise} within {_WAIT_TIMEOUT_S:.0f} s",
                    remedies=("check the machine:   headrace doctor",),
                    params={"waited_s": _WAIT_TIMEOUT_S},
                )
            time.sleep(_POLL_S)

    def _check(self, producer: SalesProducer | None) -> None:
        if producer is not None:
            producer.check()
        if self._driver is not None:
            self._driver.check()

    def _kill_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()


def crash_text(crash: Crash) -> str:
    if not crash.inside_batch:
        return (
            f"⚡ killed the driver (SIGKILL) just after batch {crash.planned} of {crash.flow}; "
            "trying again in the middle of a batch …"
        )
    table = "the table has the batch already" if crash.in_table else "the table does not have the batch"
    return (
        f"⚡ killed the driver (SIGKILL) in the middle of batch {crash.planned} of {crash.flow}, "
        "restarting …\n"
        f"  its checkpoint has offsets/{crash.planned}, but not commits/{crash.planned}; {table}"
    )


def _environment(folder: DemoFolder) -> dict[str, str]:
    from headrace.runtime import aot

    # `embedded` is the broker of the demo. The JVM start-up cache is not created during the demo, because
    # that would take its cores.
    chosen = "off" if os.environ.get(aot.VARIABLE) == "off" else "use"
    return {
        "HEADRACE_BROKER_DIR": str(folder.broker.absolute()),
        aot.VARIABLE: chosen,
        # Temporary files of a killed process are removed with this folder.
        "TMPDIR": str(folder.scratch.absolute()),
    }


def _name(settings: ProjectSettings, table: str) -> TableName:
    return TableName(settings.database, table)
