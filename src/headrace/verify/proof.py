"""`verify` as a whole: find the datasets in the storage, read them, and judge every flow.

No Spark, no JVM, and none of the code that wrote what is judged here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from headrace.errors import NothingToVerifyError, TableUnknownError
from headrace.model.connections import KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.verify.broker_requests import Explain, unexplained
from headrace.verify.checkpoint_history import Lineage
from headrace.verify.commits import Ledger
from headrace.verify.counts import FileFindings, describe_others, judge_counts, judge_files, judge_table
from headrace.verify.cross_checks import (
    compare_checkpoints,
    compare_ledger,
    compare_upstream,
    describe_checkpoint,
    pending_batch,
)
from headrace.verify.data_files import DECODED_BYTES
from headrace.verify.delta_log import LogDamagedError, has_log
from headrace.verify.evidence import (
    Evidence,
    in_reading_order,
    list_tables,
    load_evidence,
)
from headrace.verify.expected import (
    find_replacement,
    is_of_pipeline,
    load_expected,
    prove_missing,
    prove_not_created,
    prove_unread,
)
from headrace.verify.file_lists import ListJudgement, judge_lists
from headrace.verify.layout import Storage
from headrace.verify.ranges import judge_ranges
from headrace.verify.report import (
    DatasetProof,
    Finding,
    FlowProof,
    Grade,
    GradeReport,
    Proof,
    verdict_of,
)
from headrace.verify.source_range import SourceRange
from headrace.verify.upstream import find_upstream
from headrace.verify.views import Input, judge_view
from headrace.verify.wording import counted

_ANSWER_S = 5.0
"""How long the broker may take for one question, before the third grade goes without it."""


def verify_pipeline(
    settings: ProjectSettings,
    *,
    datasets: Sequence[TableName] = (),
    since: datetime | int | None = None,
    require: Grade | None = None,
    connection: KafkaConnection,
    explain: Explain = unexplained,
) -> Proof:
    """Check that every record was processed exactly once, from tables, ledger, checkpoints and broker.

    Args:
        settings: The pipeline; its storage is read, its files are not.
        datasets: What to judge; by default every dataset in the storage.
        since: A version, or a time: older commits are not checked.
        require: The grade that must be judged for every flow.
        connection: How to reach the broker.
        explain: Finds the coded error behind what a Kafka client reports.

    Raises:
        TableUnknownError: A dataset is not in the storage.
        NothingToVerifyError: The storage holds none.
        HeadraceError: The broker turns this client away, as explained.
    """
    from headrace.verify.broker_side import RecordsJudge

    expected = load_expected(_storage(settings), settings.name)
    names = _chosen(settings, datasets, expected)
    evidence: dict[TableName, Evidence] = {}
    unread: list[DatasetProof] = []
    replaced: dict[TableName, Finding] = {}
    for name in names:
        table = expected.get(name)
        if not has_log(_storage(settings).table(name)):
            if table is not None and table.was_made:
                unread.append(prove_missing(_storage(settings), table))
            else:
                unread.append(prove_not_created(name))
            continue
        try:
            found = load_evidence(_storage(settings), name, since)
        except LogDamagedError as error:
            finding = Finding(code="LOG_DAMAGED", text=str(error), place={"dataset": str(name)})
            unread.append(prove_unread(name, "the log cannot be read", finding))
            continue
        if (replacement := find_replacement(found, table, settings.name)) is not None:
            replaced[name] = replacement
        if is_of_pipeline(found) and (datasets or found.pipeline in (None, settings.name)):
            evidence[name] = found
        elif replacement is not None:
            unread.append(prove_unread(name, "replaced", replacement))
    if not evidence and not any(one.findings for one in unread):
        raise NothingToVerifyError(
            f"the storage {settings.storage.root} holds no dataset of the pipeline {settings.name}",
            remedies=("headrace run",),
            params={"storage": str(settings.storage.root), "pipeline": settings.name},
        )
    records = RecordsJudge(_storage(settings), evidence, connection, _ANSWER_S, explain)
    proofs = []
    for name in in_reading_order(evidence):
        proof = _judge(settings, evidence[name], records.judge(evidence[name]))
        findings = [replaced[name]] if name in replaced else []
        proofs.append(replace(proof, table=_with_findings(proof.table, findings)))
    return Proof(pipeline=settings.name, datasets=(*proofs, *unread), require=require)


def _chosen(
    settings: ProjectSettings, datasets: Sequence[TableName], expected: Iterable[TableName]
) -> list[TableName]:
    """The tables to judge: those that are named, or all that the storage holds or should hold."""
    there = sorted({*list_tables(_storage(settings)), *expected})
    for name in datasets:
        if name not in there:
            known = [str(one) for one in there]
            near = difflib.get_close_matches(str(name), known, n=1)
            raise TableUnknownError(
                f"the storage {settings.storage.root} holds no table {name}",
                remedies=(f"did you mean `{near[0]}`?" if near else "headrace status",),
                params={"table": str(name), "known": known},
            )
    return sorted(set(datasets)) or there


def _judge(settings: ProjectSettings, evidence: Evidence, records: Mapping[str, GradeReport]) -> DatasetProof:
    files = judge_files(evidence.balance, evidence.facts)
    flows = tuple(
        _judge_flow(settings, evidence, lineage, files, records[lineage.flow]) for lineage in evidence.judged
    )
    table = judge_table(evidence.balance, evidence.baseline, evidence.metadata, evidence.judged, files)
    view, findings = judge_view(evidence.metadata, evidence.balance, lambda name: _find_input(settings, name))
    findings += _unreadable(evidence.ledger)
    notes = describe_others(evidence.balance)
    if evidence.since is not None:
        notes.append(f"judged from version {evidence.since} on")
    undecoded = _count_undecoded(evidence)
    if undecoded:
        notes.append(
            f"strings were decoded in the newest {DECODED_BYTES >> 20} MiB of files, "
            f"and not in {counted(undecoded, 'older file')}"
        )
    return DatasetProof(
        dataset=evidence.dataset,
        kind=evidence.kind,
        version=evidence.log.version,
        table=_with_findings(table, findings),
        flows=flows,
        view=view,
        notes=tuple(notes),
        undecoded=undecoded,
    )


def _count_undecoded(evidence: Evidence) -> int:
    """The files of the table whose strings were not decoded."""
    facts = [evidence.facts.get(path) for path, _ in evidence.balance.files]
    return sum(one is not None and one.rows is not None and not one.decoded for one in facts)


def _unreadable(ledger: Ledger) -> Iterator[Finding]:
    """The files of the ledger that cannot be read: what they held cannot be compared."""
    for file, reason in ledger.damaged.items():
        text = f"the ledger file {file} cannot be read: {reason}"
        yield Finding(code="LEDGER_UNREADABLE", text=text, place={"file": file})


def _judge_flow(
    settings: ProjectSettings,
    evidence: Evidence,
    lineage: Lineage,
    files: FileFindings,
    records: GradeReport,
) -> FlowProof:
    names = {lineage.flow, *(batch.flow for batch in lineage.batches)}
    logs = [log for name in sorted(names) for log in evidence.checkpoints.get(name, ())]
    ranges = judge_ranges(lineage, evidence.ledger, evidence.log.first_version)
    if any(source.kind == "files" for batch in lineage.batches for source in batch.sources):
        ranges = _with_lists(ranges, judge_lists(lineage, evidence.lists, logs, evidence.ledger))
    others = compare_ledger(lineage, evidence.ledger, evidence.metadata, evidence.log.first_version)
    others += compare_checkpoints(lineage, logs, evidence.log.transactions)
    others += compare_upstream(lineage, lambda source: _find_table(settings, source))
    last = lineage.last
    return FlowProof(
        flow=lineage.flow,
        checkpoint=lineage.checkpoint,
        generation=lineage.number,
        batch=None if last is None else last.last,
        version=None if last is None else last.last_version,
        grades=(
            _with_findings(ranges, others),
            judge_counts(lineage, evidence.balance, files),
            records,
        ),
        pending=pending_batch(lineage, logs),
        notes=tuple(describe_checkpoint(lineage, logs)),
    )


def _with_lists(report: GradeReport, judged: ListJudgement) -> GradeReport:
    findings, reasons = (*report.findings, *judged.findings), (*report.reasons, *judged.reasons)
    text = f"{counted(judged.count, 'file')}, {report.text.replace('files source, ', '')}"
    if judged.findings:
        text = text.replace(", no gap, no overlap", "")
    return replace(
        report,
        findings=findings,
        reasons=reasons,
        text=text,
        verdict=verdict_of(findings, reasons),
        figures={**report.figures, "files": judged.count},
    )


def _with_findings(report: GradeReport, findings: Sequence[Finding]) -> GradeReport:
    if not findings:
        return report
    together = (*report.findings, *findings)
    return replace(report, findings=together, verdict=verdict_of(together, report.reasons))


def _find_table(settings: ProjectSettings, source: SourceRange) -> Path | None:
    found = find_upstream(_storage(settings), source)
    return None if found is None else found.path


def _find_input(settings: ProjectSettings, text: str) -> Input | None:
    name = TableName.parse(text, settings.database)
    try:
        found = load_evidence(_storage(settings), name, inspect=False)
    except LogDamagedError:
        return None
    changes = [commit.version for commit in found.log.commits if commit.changes_data]
    return Input(table_id=found.log.metadata.id, version=max(changes, default=found.log.base_version))


def _storage(settings: ProjectSettings) -> Storage:
    return Storage(settings.storage.root.local_path)
