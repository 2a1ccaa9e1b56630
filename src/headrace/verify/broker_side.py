"""The third grade for all tables: one connection, every file read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from headrace.model.names import TableName
from headrace.verify.brokers import Brokers
from headrace.verify.checkpoint_history import Lineage
from headrace.verify.claims import (
    Claims,
    build_derived_claims,
    build_kafka_claims,
    clusters_of,
    join_claims,
    topics_of,
    with_rejected,
)
from headrace.verify.coordinates import (
    Columns,
    CoordinateReader,
    CoordinatesUnreadableError,
    CoordinatesUnsupportedError,
    Present,
    find_columns,
    read_others,
    read_table_records,
)
from headrace.verify.delta_log import LogDamagedError
from headrace.verify.evidence import Evidence, load_evidence
from headrace.verify.file_lists import judge_lists
from headrace.verify.file_records import judge_folder
from headrace.verify.keys import keys_of
from headrace.verify.last_records import compare_marks, find_marks, newest_marks
from headrace.verify.layout import Storage, find_upstream
from headrace.verify.offsets import Topic
from headrace.verify.quarantine import Rejected, rows_in
from headrace.verify.records import READ_WHOLE, compare, judge_records, offsets_to_ask
from headrace.verify.report import Finding, GradeReport, unjudged_records
from headrace.verify.source_range import OPAQUE, SourceRange, TopicPartition
from headrace.verify.spans import Spans

_END_INDEX = 1 << 62
"""Delta marks a version that was read whole by an index beyond every file."""


class _CannotJudgeError(Exception):
    """Why the third grade of a flow cannot be judged.

    Args:
        applies: False where no flow of this kind can be judged by this grade.
    """

    def __init__(self, reason: str, *, applies: bool = True) -> None:
        super().__init__(reason)
        self.applies = applies


class RecordsJudge:
    """Judges records; what tables have in common is asked and read once."""

    def __init__(self, storage: Storage, evidence: Mapping[TableName, Evidence], brokers: Brokers) -> None:
        self._storage = storage
        self._evidence = dict(evidence)
        self._brokers = brokers
        self._reader = CoordinateReader()
        self._asked = False

    def judge(self, evidence: Evidence) -> dict[str, GradeReport]:
        """The third grade of every flow of a table, by flow."""
        of_files = {
            one.flow: _judge_files(evidence, one)
            for one in evidence.lineages
            if one.source_kinds == {"files"}
        }
        if of_files:
            reason = "another flow of the table reads files, whose rows have no coordinates in Kafka"
            return {**self._unjudged(evidence, reason, applies=False), **of_files}
        try:
            columns = find_columns(evidence.log.metadata)
        except CoordinatesUnreadableError as error:
            return self._unjudged(evidence, str(error))
        if columns is None:
            reason = (
                "a row is not one record: changes are applied by key"
                if keys_of(evidence.log)
                else "the table keeps no coordinates of its records (table property headrace.coordinates)"
            )
            return self._unjudged(evidence, reason, applies=False)
        claims: dict[str, Claims] = {}
        for lineage in evidence.lineages:
            try:
                _check_clusters(evidence, lineage)
                found = self._claims(evidence, lineage)
                replays = (one for one in evidence.replays if one.flow in lineage.names)
                claims[lineage.flow] = with_rejected(
                    found,
                    lineage,
                    evidence.quarantine,
                    evidence.since,
                    dropped_later=sum(one.counts.dropped for one in replays),
                )
            except _CannotJudgeError as error:
                # No other flow can be judged either: its rows cannot be separated from theirs.
                return self._unjudged(evidence, str(error), applies=error.applies)
        try:
            return self._judge_claims(evidence, columns, claims)
        except CoordinatesUnsupportedError as error:
            return self._unjudged(evidence, str(error))

    def compare_marks(self, evidence: Evidence) -> dict[str, list[Finding]]:
        """Compare the marks of the last records of each flow's batches with the broker.

        The newest one of each partition is asked for. The others are compared where `judge` has read them.
        """
        marked = [
            lineage
            for lineage in evidence.judged
            if any(source.last for batch in lineage.batches for source in batch.sources)
        ]
        if marked:
            self._ask_topics()
        found: dict[str, list[Finding]] = {}
        for lineage in marked:
            for servers in sorted(lineage.clusters, key=str):
                broker = self._brokers.at(servers)
                marks = find_marks(lineage, servers, broker.topics or {})
                newest = newest_marks(marks)
                asked = {
                    place: Spans.of([(offset, offset + 1) for offset in offsets])
                    for place, offsets in newest.items()
                    if not offsets & broker.marks.get(place, {}).keys()
                }
                topics = broker.topics or {}
                answered = broker.load(asked, newest) is not None
                compacted = {
                    name for name, one in topics.items() if one is None or one.compacted is not False
                }
                findings = compare_marks(marks, broker.marks, newest if answered else {}, compacted)
                found.setdefault(lineage.flow, []).extend(findings)
        return found

    def _judge_claims(
        self, evidence: Evidence, columns: Columns, claims: Mapping[str, Claims]
    ) -> dict[str, GradeReport]:
        derived = any(one.upstream is not None for one in claims.values())
        table = read_table_records(
            self._reader,
            evidence.log,
            evidence.balance,
            columns,
            all_files=derived or evidence.baseline.expected is not None,
        )
        table = replace(table, quarantined=_quarantined(evidence))
        together = join_claims(claims.values())
        asked = offsets_to_ask(together, table, READ_WHOLE)
        topics: dict[str, Topic | None] = {}
        found: dict[TopicPartition, Spans] = {}
        clusters = clusters_of(evidence.lineages)
        for servers in sorted(set(clusters.values()), key=str):
            broker = self._brokers.at(servers)
            watched: dict[TopicPartition, set[int]] = {}
            for lineage in evidence.lineages:
                for place, offsets in find_marks(lineage, servers, broker.topics or {}).items():
                    watched.setdefault(place, set()).update(offsets)
            mine = {place: spans for place, spans in asked.items() if clusters[place[0]] == servers}
            held = broker.load(mine, watched)
            if held is None:
                return self.judge(evidence)
            found |= held
            topics |= {
                name: (broker.topics or {}).get(name) for name, at in clusters.items() if at == servers
            }
        compared = compare(together, table, asked, found, topics)
        return {
            flow: judge_records(
                one,
                compared,
                table,
                is_first=number == 0,
                sharing=[
                    other
                    for name, other in claims.items()
                    if name != flow and not one.partitions.keys().isdisjoint(other.partitions)
                ],
            )
            for number, (flow, one) in enumerate(claims.items())
        }

    def _claims(self, evidence: Evidence, lineage: Lineage) -> Claims:
        match sorted(lineage.source_kinds):
            case [] | ["kafka"]:
                self._ask_topics()
                broker = self._brokers.at(next(iter(lineage.clusters), None))
                return build_kafka_claims(lineage, broker.topics, evidence.since, broker.silence)
            case ["delta"]:
                return self._derived(lineage)
            case found if OPAQUE in found:
                raise _CannotJudgeError("only Spark understands the positions of a stream that it reads")
            case found:
                reason = f"it reads {' and '.join(found)} sources, whose rows cannot be compared with Kafka"
                raise _CannotJudgeError(reason, applies=False)

    def _ask_topics(self) -> None:
        """Ask each cluster once for the topics of all flows."""
        if self._asked:
            return
        self._asked = True
        lineages = [lineage for one in self._evidence.values() for lineage in one.lineages]
        for servers, names in topics_of(lineages).items():
            self._brokers.at(servers).ask_topics(names)

    def _derived(self, lineage: Lineage) -> Claims:
        """A flow that reads another table must hold what that table held at the version it read."""
        last = lineage.last
        assert last is not None
        musts, mays, names = [], [], []
        excused = 0
        for source in last.sources:
            version = int(source.until["reservoirVersion"])
            upstream = self._upstream(source, version)
            try:
                columns = find_columns(upstream.log.metadata)
                if columns is None:
                    reason = f"{upstream.dataset}, which it reads, keeps no coordinates"
                    raise _CannotJudgeError(reason, applies=False)
                must, may, whole = self._rows_read(upstream, columns, source)
            except (CoordinatesUnreadableError, LogDamagedError) as error:
                raise _CannotJudgeError(
                    f"what {upstream.dataset} held at version {version} is gone: {error}"
                ) from error
            others = read_others(self._reader, upstream.log, upstream.balance, columns)
            excused += others.gone_unknown
            musts.append(must)
            mays += [may, others.gone]
            names.append(f"{upstream.dataset.name} v{whole}")
        return build_derived_claims(" and ".join(names), Present.joined(musts), Present.joined(mays), excused)

    def _rows_read(
        self, upstream: Evidence, columns: Columns, source: SourceRange
    ) -> tuple[Present, Present, int]:
        """The rows of the versions that were read whole, and those of one that was read in part."""
        version, index = int(source.until["reservoirVersion"]), int(source.until["index"])
        if source.until.get("isStartingVersion") and index < _END_INDEX:
            files = upstream.log.active(version).values()
            return Present(), self._reader.read_all(upstream.log, files, columns), version
        whole = version if index >= _END_INDEX else version - 1
        part = Present()
        if 0 <= index < _END_INDEX:
            added = [c.added for c in upstream.log.commits if c.version == version]
            part = self._reader.read_all(upstream.log, [f for files in added for f in files], columns)
        if whole < 0:
            return Present(), part, whole
        must = self._reader.read_all(upstream.log, upstream.log.active(whole).values(), columns)
        return must, part, whole

    def _upstream(self, source: SourceRange, version: int) -> Evidence:
        """The table that a flow reads, at the version that it has read or later."""
        there = find_upstream(self._storage, source)
        found = None
        if there is not None and there.storage is not None:
            found = self._evidence.get(there.name) if there.storage == self._storage else None
            if found is None or found.log.version < version - 1 or found.since is not None:
                found = self._load(there.storage, there.name)
        if found is None or found.log.metadata.id != source.identity.get("table_id"):
            reason = f"it reads {source.identity.get('path')}, which is not a table of a pipeline"
            raise _CannotJudgeError(reason, applies=False)
        return found

    def _load(self, storage: Storage, name: TableName) -> Evidence:
        try:
            found = load_evidence(storage, name, inspect=False)
        except LogDamagedError as error:
            raise _CannotJudgeError(f"{name}, which it reads: {error}") from error
        if storage == self._storage:
            self._evidence[name] = found
        return found

    def _unjudged(self, evidence: Evidence, reason: str, *, applies: bool = True) -> dict[str, GradeReport]:
        return {lineage.flow: unjudged_records(reason, applies=applies) for lineage in evidence.lineages}


def _judge_files(evidence: Evidence, lineage: Lineage) -> GradeReport:
    judged = judge_lists(lineage, evidence.lists, (), evidence.ledger)
    return judge_folder(lineage, judged.read, not judged.reasons)


def _check_clusters(evidence: Evidence, lineage: Lineage) -> None:
    """Check that the topic of a row tells the cluster that its record comes from."""
    if len(lineage.clusters) > 1:
        raise _CannotJudgeError("it reads topics of several Kafka clusters", applies=False)
    now = [one.last.sources for one in evidence.lineages if one.last is not None]
    readers = {(topic, one.servers) for sources in now for one in sources for topic in one.topics}
    for topic in {topic for topic, _ in readers}:
        if len({servers for name, servers in readers if name == topic}) > 1:
            raise _CannotJudgeError(
                f"its flows read the topic {topic} in several Kafka clusters, which its rows do not name",
                applies=False,
            )


def _quarantined(evidence: Evidence) -> Present:
    """The coordinates of the rejected rows of committed batches that were not replayed."""
    parts = []
    for lineage in evidence.lineages:
        for part in (evidence.quarantine.kept, evidence.quarantine.discarded):
            found = Rejected.joined(rows_in(part, lineage.batches))
            spans = {
                key: Spans.of_offsets(np.array(offsets, dtype=np.int64))
                for key, offsets in found.partitions.items()
            }
            parts.append(Present(spans, found.rows - sum(map(len, found.partitions.values())), found.rows))
    return Present.joined(parts)
