"""The proof as data: what was judged, what holds, and each finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.model.names import TableName
from headrace.model.texts import counted, html_table, wrap

Grade = Literal["ranges", "counts", "records"]
GRADES: tuple[Grade, ...] = ("ranges", "counts", "records")

Verdict = Literal["proven", "partial", "unjudged", "refuted"]
"""``partial``: holds as far as it can still be judged, see the reasons."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact that contradicts exactly-once processing."""

    code: str
    text: str
    place: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "text": self.text, **self.place}


@dataclass(frozen=True, kw_only=True)
class GradeReport:
    """One grade of one flow."""

    grade: Grade
    verdict: Verdict
    text: str
    reasons: tuple[str, ...] = ()  # why the grade is ``partial`` or ``unjudged``
    findings: tuple[Finding, ...] = ()
    figures: Mapping[str, int] = field(default_factory=dict)  # the numbers of ``text``
    details: Mapping[str, Any] = field(default_factory=dict)  # the facts behind the figures, for machines
    applies: bool = True  # whether this kind of flow can be judged by this grade at all

    @property
    def is_open(self) -> bool:
        """Whether the grade could be judged, and was not, or was only in part."""
        return self.applies and self.verdict in ("partial", "unjudged")

    def with_findings(self, findings: Sequence[Finding]) -> GradeReport:
        together = (*self.findings, *findings)
        verdict = verdict_of(together, self.reasons) if findings else self.verdict
        return replace(self, findings=together, verdict=verdict)

    def to_json(self) -> dict[str, Any]:
        left_out = {"grade", "applies"} if self.details else {"grade", "applies", "details"}
        data = {name: value for name, value in vars(self).items() if name not in left_out}
        return {**data, "findings": [finding.to_json() for finding in self.findings]}


def verdict_of(findings: Sequence[Finding], reasons: Sequence[str]) -> Verdict:
    """The verdict of a grade that could be judged at all."""
    if findings:
        return "refuted"
    return "partial" if reasons else "proven"


@dataclass
class Judgement:
    """Collects the findings of a grade, and the reasons why parts of it cannot be judged."""

    findings: list[Finding] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def find(self, code: str, text: str, **place: Any) -> None:
        self.findings.append(Finding(code=code, text=text, place=place))

    def report(
        self,
        grade: Grade,
        text: str,
        figures: Mapping[str, int] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> GradeReport:
        return GradeReport(
            grade=grade,
            verdict=verdict_of(self.findings, self.reasons),
            text=text,
            reasons=tuple(self.reasons),
            findings=tuple(self.findings),
            figures=figures or {},
            details=details or {},
        )


def unjudged_records(reason: str, *, applies: bool = True) -> GradeReport:
    """The third grade of a flow whose records cannot be compared."""
    return GradeReport(
        grade="records", verdict="unjudged", text="not checked", reasons=(reason,), applies=applies
    )


@dataclass(frozen=True, kw_only=True)
class FlowProof:
    """What holds for one flow."""

    flow: str
    checkpoint: str
    generation: int
    batch: int | None  # the last committed batch; ``None`` before the first
    version: int | None
    grades: tuple[GradeReport, ...]
    pending: int | None = None  # A batch that Spark has planned and not committed; no fault
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "grades": {report.grade: report.to_json() for report in self.grades}}


@dataclass(frozen=True, kw_only=True)
class ViewProof:
    """What a materialized view was computed from, and whether that still is the latest."""

    version: int
    rows: int
    fresh: bool
    text: str
    inputs: Mapping[str, int]  # the version of each table that it was computed from
    definition: str  # the fingerprint of its query

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class DatasetProof:
    """What holds for one dataset."""

    dataset: TableName
    kind: str
    version: int  # the table version that was judged; nothing newer was read
    table: GradeReport  # the equation of the whole table: every row in it accounted for
    flows: tuple[FlowProof, ...] = ()
    view: ViewProof | None = None
    notes: tuple[str, ...] = ()
    undecoded: int = 0  # older files of a large table whose strings were not decoded
    sample: GradeReport | None = None  # the newest records of some keys against their rows, if asked for
    query: GradeReport | None = None  # the rows of a view against those of its query, if asked for
    unsampled: bool = False  # whether changes are applied by key, and no sample of keys was asked for

    @property
    def reports(self) -> tuple[GradeReport, ...]:
        """The grades of all flows, the equation of the table, and the comparisons that were asked for."""
        asked = tuple(one for one in (self.sample, self.query) if one is not None)
        return (self.table, *(report for flow in self.flows for report in flow.grades), *asked)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for report in self.reports for finding in report.findings)

    @property
    def is_not_created(self) -> bool:
        """Whether a run is still to create the table."""
        return self.version < 0 and self.kind != "sink" and not self.findings

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "dataset": str(self.dataset),
            "table": self.table.to_json(),
            "flows": [flow.to_json() for flow in self.flows],
            "view": None if self.view is None else self.view.to_json(),
            "sample": None if self.sample is None else self.sample.to_json(),
            "query": None if self.query is None else self.query.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The report of `verify`."""

    pipeline: str
    datasets: tuple[DatasetProof, ...]
    require: Grade | None = None  # the grade that every flow must be judged by
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for dataset in self.datasets for finding in dataset.findings)

    @property
    def proven(self) -> bool:
        """Whether there are no findings, as far as it can be judged."""
        return not self.findings

    def __repr__(self) -> str:
        verdict = "proven" if self.proven else f"not proven, {len(self.findings)} findings"
        return f"<Proof of {self.pipeline}: {verdict}; {len(self.datasets)} datasets>"

    def _repr_html_(self) -> str:
        rows = [
            (dataset.dataset.short, flow.flow, *(f"{one.grade} {MARKS[one.verdict]}" for one in flow.grades))
            for dataset in self.datasets
            for flow in dataset.flows
        ]
        title = f"{self.pipeline}: {'proven' if self.proven else 'not proven'}"
        lines = [f"✗ {finding.text}" for finding in self.findings]
        return html_table(title, ("dataset", "flow", "", "", ""), rows, [*lines, *self.unmet])

    @property
    def unmet(self) -> tuple[str, ...]:
        """Why what was asked for cannot be judged, one line for each flow and view."""
        flows = (flow for dataset in self.datasets for flow in dataset.flows)
        asked = ((one.dataset.short, one.query) for one in self.datasets if one.query is not None)
        views = (f"{name}: query: {'; '.join(one.reasons)}" for name, one in asked if one.is_open)
        return (*views, *self._unmet(flows))

    def _unmet(self, flows: Iterable[FlowProof]) -> Iterator[str]:
        return (
            f"{flow.flow}: {report.grade}: {'; '.join(report.reasons)}"
            for flow in flows
            for report in flow.grades
            if report.grade == self.require and report.verdict in ("partial", "unjudged")
        )

    @property
    def exit_code(self) -> int:
        """0 no finding, 1 findings, 3 a required grade cannot be judged."""
        return 1 if not self.proven else 3 if self.unmet else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "at": self.at.isoformat(timespec="milliseconds"),
            "proven": self.proven,
            "exit_code": self.exit_code,
            "require": self.require,
            "unmet": list(self.unmet),
            "datasets": [dataset.to_json() for dataset in self.datasets],
        }


MARKS: dict[Verdict, str] = {"proven": "✓", "partial": "~", "unjudged": "-", "refuted": "✗"}

_WIDEST = 96
_NARROWEST = 24  # characters of a text
_MARKED = "  "


@dataclass(frozen=True)
class Line:
    name: str  # the flow or view; empty under its first line
    grade: str
    text: str
    verdict: Verdict | None = None
    is_finding: bool = False  # whether the remark is a contradiction


def proof_lines(proof: Proof, default_schema: str = "default", width: int | None = None) -> list[str]:
    """The report as aligned lines of plain text. `width`: characters of a line; `None` breaks none.
    A name that takes a third of the width has a line of its own."""
    lines = [line for dataset in proof.datasets for line in _dataset_lines(dataset, default_schema)]
    names = max((len(line.name) for line in lines), default=0)
    texts = max((len(line.text) for line in lines if line.verdict and len(line.text) <= _WIDEST), default=0)
    found = ["Proof"]
    is_narrow = width is not None and names > width // 3
    for line in lines:
        if is_narrow and line.name:
            found.append(f" {line.name}")
        head = f" {'' if is_narrow else line.name:<{0 if is_narrow else names}}  {line.grade:<7}  "
        text = f"{'✗ ' if line.is_finding else ''}{line.text}"
        room = None if width is None else max(width - len(_MARKED) - 1, len(head) + _NARROWEST)
        *first, last = wrap(text, room, head, " " * len(head))
        end = len(head) + texts if room is None else min(len(head) + texts, room)
        found += [*first, last if line.verdict is None else f"{last:<{end}}{_MARKED}{MARKS[line.verdict]}"]
    return [*found, "", *conclusion(proof)]


def conclusion(proof: Proof) -> list[str]:
    """The last lines: what was judged, and whether it holds."""
    if not proof.proven:
        return [f"Not proven: {counted(len(proof.findings), 'finding')}."]
    lines = [_judged(proof)]
    if proof.unmet:
        lines += [f"Required, but not judged: {proof.require or 'the rows of views'}", *proof.unmet]
    return lines


def _judged(proof: Proof) -> str:
    """The last line of a proof without findings."""
    reports = [report for dataset in proof.datasets for report in dataset.reports]
    records = [report for report in reports if report.grade == "records"]
    left = [report for report in reports if report.is_open]
    missing = [str(one.dataset) for one in proof.datasets if one.is_not_created]
    undecoded = [str(one.dataset) for one in proof.datasets if one.undecoded]
    more = f" Not created yet: {', '.join(missing)}." if missing else ""
    more += f" Strings of older files were not decoded: {', '.join(undecoded)}." if undecoded else ""
    if unsampled := [str(one.dataset) for one in proof.datasets if one.unsampled]:
        more += f" Keys were not compared with their records (--sample N): {', '.join(unsampled)}."
    if not left:
        is_whole = records and all(report.applies for report in records)
        return ("Proven (records)." if is_whole else "Proven.") + more
    if any(report.grade != "records" for report in left):
        return f"What was judged holds; {MARKS['partial']} and {MARKS['unjudged']} mark what was not.{more}"
    how = "not judged" if all(report.verdict == "unjudged" for report in left) else "judged in part"
    reasons = list(dict.fromkeys(reason for report in left for reason in report.reasons))
    others = f" (and {counted(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
    return f"Ranges and counts hold; records were {how}: {reasons[0]}{others}.{more}"


def _dataset_lines(dataset: DatasetProof, default_schema: str) -> Iterator[Line]:
    name = dataset.dataset.within(default_schema)
    for flow in dataset.flows:
        yield from _flow_lines(flow, name if flow.flow == dataset.dataset.name else f"{name}/{flow.flow}")
    if dataset.view is not None:
        yield Line(name, "view", dataset.view.text, "proven" if dataset.view.fresh else "partial")
    is_plain = dataset.table.verdict == "proven" and not dataset.notes
    if dataset.view is not None or not is_plain or not dataset.flows:
        yield from _grade_lines("" if dataset.flows or dataset.view else name, "table", dataset.table)
    if dataset.sample is not None:
        yield from _grade_lines("", "sample", dataset.sample)
    if dataset.query is not None:
        yield from _grade_lines("", "query", dataset.query)
    for note in dataset.notes:
        yield Line("", "", note)


def _flow_lines(flow: FlowProof, name: str) -> Iterator[Line]:
    for report in flow.grades:
        yield from _grade_lines(name, report.grade, report)
        name = ""
    if flow.pending is not None:
        yield Line("", "", f"batch {flow.pending} is planned and not committed yet")
    for note in flow.notes:
        yield Line("", "", note)


def _grade_lines(name: str, label: str, report: GradeReport) -> Iterator[Line]:
    yield Line(name, label, report.text, report.verdict)
    for reason in report.reasons:
        yield Line("", "", reason)
    for finding in report.findings:
        yield Line("", "", finding.text, is_finding=True)
