"""The proof as data: what was judged, what holds, and each finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.model.names import TableName

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
        grade="records", verdict="unjudged", text="cannot be judged", reasons=(reason,), applies=applies
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
    unsampled: bool = False  # whether changes are applied by key, and no sample of keys was asked for

    @property
    def reports(self) -> tuple[GradeReport, ...]:
        """The grades of all flows, the equation of the table, and the sample."""
        sample = () if self.sample is None else (self.sample,)
        return (self.table, *(report for flow in self.flows for report in flow.grades), *sample)

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

    @property
    def unmet(self) -> tuple[str, ...]:
        """Why the required grade cannot be judged, one line for each flow."""
        flows = (flow for dataset in self.datasets for flow in dataset.flows)
        return tuple(
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
