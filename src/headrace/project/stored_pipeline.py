"""What can be told of a pipeline without Spark: its proof, status, events and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING

from headrace import errors
from headrace.errors import RUN_FIRST, HeadraceError, did_you_mean
from headrace.maintain.holders import Pin, add_pin, load_maintenance, load_pins, remove_pins
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.texts import typed_duration
from headrace.observe.read import Rows, Selection, find_dataset, find_table, read_rows
from headrace.project.engine import Engine
from headrace.storage.layout import reach_s3
from headrace.storage.table_log import readable_versions

if TYPE_CHECKING:
    from headrace.maintain.health import LaggingReader, TableHealth
    from headrace.observe.event_table import EventLevel, LoggedEvent
    from headrace.observe.quality import Quality
    from headrace.observe.slow import SlowBatches
    from headrace.observe.snapshot import Snapshot
    from headrace.project.checkpoints import Checkpoints
    from headrace.verify.report import Proof


class StoredPipeline:
    """What the storage, the event log and the broker tell of a pipeline; starts no JVM."""

    def __init__(self, settings: ProjectSettings, engine: Engine) -> None:
        self.settings = settings
        self._engine = engine

    def verify(
        self,
        datasets: Sequence[str] = (),
        *,
        since: datetime | int | None = None,
        require: str | None = None,
        sample: int | None = None,
    ) -> Proof:
        """Check that every record was processed exactly once; starts no JVM.

        Args:
            since: A table version or a time; older commits are not checked.
            require: The grade that must be judged for each flow: ``ranges``, ``counts`` or ``records``.
            sample: The number of keys of each table with changes by key whose newest records are read again,
                and of keys of each sink whose rows are compared with the table that it follows.

        Returns:
            The proof: `proven`, and each flow with its grades.

        Example:
            >>> assert pipeline.verify().proven  # doctest: +SKIP
        """
        from headrace.project.noop_check import declared_sinks
        from headrace.runtime.kafka_faults import find_fault
        from headrace.sources.kinesis.clients import reach_stream
        from headrace.verify.kafka.offsets import KafkaAccess
        from headrace.verify.proof import verify_pipeline
        from headrace.verify.report import GRADES
        from headrace.verify.stored import LOCAL, S3Buckets

        if require is not None and require not in GRADES:
            raise errors.ArgumentInvalidError(
                f"verify: require={require!r} is not one of {', '.join(GRADES)}",
                remedies=did_you_mean(require, GRADES),
                params={"argument": "require", "value": require},
            )
        asked = [datasets] if isinstance(datasets, str) else datasets
        names = [self.settings.table_name(name) for name in asked]
        connection = self._engine.connection()
        kafka = KafkaAccess(
            own=connection,
            others=(*self._engine.other_clusters, *self.settings.brokers.named),
            explain=lambda text: find_fault(connection, text),
        )
        with self._redacted():
            return verify_pipeline(
                self.settings,
                datasets=names,
                since=since,
                require=require,
                sample=sample,
                access={"kafka": kafka, "kinesis": partial(reach_stream, self.settings.kinesis)},
                systems={**LOCAL, "s3": S3Buckets(reach_s3)},
                sinks=cache(partial(declared_sinks, self.settings)),
            )

    def read(
        self, table: str, *, where: str | None = None, limit: int | None = None, columns: Sequence[str] = ()
    ) -> Rows:
        """Rows of a table of the storage, or of any folder that is a Delta table; starts no JVM.

        Example:
            >>> pipeline.read("revenue", where="revenue > 100").rows  # doctest: +SKIP
        """
        path = find_table(table, self.settings.storage, self.settings.database)
        return read_rows(path, Selection(where=where, limit=limit, columns=columns))

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the pipeline's flows, read without Spark.

        Example:
            >>> pipeline.checkpoints.show()  # doctest: +SKIP
        """
        from headrace.project.checkpoints import Checkpoints

        return Checkpoints(self.settings)

    @property
    def pins(self) -> Pins:
        """The versions of tables that are kept: list, add and remove them.

        Example:
            >>> pipeline.pins.add("orders", version=61, seconds=86400)  # doctest: +SKIP
        """
        return Pins(self.settings)

    def status(self) -> Snapshot:
        """The state of the pipeline, from its storage and the broker; starts no JVM.

        Example:
            >>> [dataset.rows for dataset in pipeline.status().datasets]  # doctest: +SKIP
        """
        from headrace.observe.snapshot import take_snapshot

        with self._redacted():
            kafka = self._engine.connection()
            return take_snapshot(replace(self.settings, kafka=kafka), kafka.bootstrap_servers)

    def lagging_readers(self) -> tuple[LaggingReader, ...]:
        """The readers of the storage's tables that lag; starts no JVM.

        Example:
            >>> [(one.table, one.until) for one in pipeline.lagging_readers()]  # doctest: +SKIP
        """
        from headrace.maintain.health import find_lagging

        return tuple(find_lagging(self.settings.storage, self.settings.maintenance))

    def table_health(self) -> tuple[TableHealth, ...]:
        """The files and logs of the storage's tables, and what care is due; starts no JVM.

        Example:
            >>> [(one.target.title, one.remarks) for one in pipeline.table_health()]  # doctest: +SKIP
        """
        from headrace.maintain.health import examine_health

        storage = self.settings.storage
        return tuple(examine_health(storage, self.settings.maintenance, storage.find_tables()))

    def slow_batches(self, since: datetime | None = None) -> tuple[SlowBatches, ...]:
        """What the slowest percent of each flow's batches consist of, from the event log; starts no JVM.

        Args:
            since: By default, the last hour of the event log.

        Example:
            >>> [(one.flow, one.from_ms, one.beside) for one in pipeline.slow_batches()]  # doctest: +SKIP
        """
        from headrace.observe.slow import find_slow_batches

        return tuple(find_slow_batches(self.settings.storage, since))

    def events(
        self,
        *,
        flow: str | None = None,
        level: EventLevel = "metrics",
        since: datetime | None = None,
        limit: int | None = None,
    ) -> tuple[LoggedEvent, ...]:
        """The events of the pipeline from its event log, oldest first; starts no JVM.

        Args:
            level: The lowest level: ``metrics``, ``info``, ``warn`` or ``error``.

        Example:
            >>> [event.message for event in pipeline.events(level="warn")]  # doctest: +SKIP
        """
        from headrace.observe.event_table import EventFilter, read_events

        settings = self.settings
        chosen = EventFilter(
            pipeline=settings.name, schema=settings.database, flow=flow, level=level, since=since
        )
        return read_events(settings.storage, chosen, limit)

    def quality(self, dataset: str | None = None, *, since: datetime | None = None) -> Quality:
        """The counts of expectations over time, from the event log; starts no JVM.

        Example:
            >>> [one.dropped for one in pipeline.quality().datasets]  # doctest: +SKIP
        """
        from headrace.observe.event_table import EventFilter
        from headrace.observe.quality import read_quality

        settings = self.settings
        chosen = EventFilter(pipeline=settings.name, schema=settings.database, flow=dataset, since=since)
        return read_quality(settings.storage, chosen)

    @contextmanager
    def _redacted(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError as error:
            is_storage = isinstance(error, errors.StorageUnwritableError)
            located = error.with_location(self.settings.places.get("storage") if is_storage else None)
            raise self.settings.redactor.error(located) from error.__cause__


@dataclass(frozen=True)
class Pins:
    """The pins of a pipeline. Its methods raise `TableUnknownError` if there is no such table."""

    settings: ProjectSettings

    def list(self, table: str | None = None) -> tuple[Pin, ...]:
        """The pins of a table, or of all tables of the storage."""
        storage = self.settings.storage
        tables = storage.find_tables() if table is None else [self._name(table)]
        return tuple(pin for one in tables for pin in load_pins(storage, one))

    def add(self, table: str, version: int | None, seconds: float) -> Pin:
        """Keep a version readable from now on.

        Raises:
            TableUnknownError: There is no such table.
            PinInvalidError: The table does not have the version any more.
        """
        name = self._name(table)
        storage = self.settings.storage
        options = f"--for {typed_duration(seconds)}"
        chosen = self._chosen(name, version, options)
        # A version that is already pinned still has its files.
        is_kept = any(one.version == chosen for one in load_pins(storage, name))
        pin = Pin(table=name, version=chosen, until=datetime.now(UTC) + timedelta(seconds=seconds))
        # A vacuum writes what it deletes, and reads the pins then: one of the two sees the other.
        add_pin(storage, pin)
        oldest = int(load_maintenance(storage, name).get("vacuumed", {}).get("readable_from", 0))
        if chosen < oldest and not is_kept:
            remove_pins(storage, name, chosen)
            problem = f"{name.short}: files of version {chosen} were deleted by a vacuum"
            held = f"the oldest version with all its files is {oldest}"
            remedy = f"pin that version:   headrace pin {name.short} --version {oldest} {options}"
            raise _invalid_pin(name, problem, held, remedy, version=chosen)
        return pin

    def remove(self, table: str, version: int | None = None) -> tuple[Pin, ...]:
        """Remove the pin of a version, or all pins of a table; returns the removed pins."""
        return remove_pins(self.settings.storage, self._name(table), version)

    def _chosen(self, name: TableName, version: int | None, options: str) -> int:
        """A version of a table, by default the newest. `options`: those of the command that chooses it."""
        known = readable_versions(self.settings.storage.table(name))
        chosen = known[-1] if version is None and known else version
        if chosen is None or chosen not in known:
            held = f"its versions: {known[0]} to {known[-1]}" if known else "its log has no version"
            problem = f"{name.short} has no version {chosen}"
            remedy = RUN_FIRST
            if known:
                remedy = f"name the newest:   headrace pin {name.short} --version {known[-1]} {options}"
            raise _invalid_pin(name, problem, held, remedy, version=chosen)
        return chosen

    def _name(self, table: str) -> TableName:
        return find_dataset(table, self.settings)


def _invalid_pin(
    name: TableName, problem: str, fact: str, remedy: str, **params: object
) -> errors.PinInvalidError:
    found = {"table": str(name), **params}
    return errors.PinInvalidError(problem, facts=(fact,), remedies=(remedy,), params=found)
