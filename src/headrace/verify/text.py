"""The proof as a person reads it: one line for each grade, and under it what is wrong or unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.model.texts import counted
from headrace.verify.report import DatasetProof, FlowProof, GradeReport, Proof, Verdict

MARKS: dict[Verdict, str] = {"proven": "✓", "partial": "~", "unjudged": "-", "refuted": "✗"}

_WIDEST = 96


@dataclass(frozen=True)
class Line:
    name: str  # the flow or view; empty under its first line
    grade: str
    text: str
    verdict: Verdict | None = None
    is_finding: bool = False  # whether the remark is a contradiction


def proof_lines(proof: Proof, default_schema: str = "default") -> list[str]:
    """The report as aligned lines of plain text."""
    lines = [line for dataset in proof.datasets for line in _dataset_lines(dataset, default_schema)]
    names = max((len(line.name) for line in lines), default=0)
    texts = max((len(line.text) for line in lines if line.verdict and len(line.text) <= _WIDEST), default=0)
    found = ["Proof"]
    for line in lines:
        head = f" {line.name:<{names}}  {line.grade:<7}  "
        if line.verdict is not None:
            found.append(f"{head}{line.text:<{texts}}  {MARKS[line.verdict]}")
        else:
            found.append(f"{head}{'✗ ' if line.is_finding else ''}{line.text}")
    return [*found, "", *conclusion(proof)]


def conclusion(proof: Proof) -> list[str]:
    """The last lines: what was judged, and whether it holds."""
    if not proof.proven:
        return [f"Not proven: {counted(len(proof.findings), 'finding')}."]
    lines = [_judged(proof)]
    if proof.unmet:
        lines += [f"Required, but not judged: {proof.require}", *proof.unmet]
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
