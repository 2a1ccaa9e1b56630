"""The troubles of a pipeline, for probes and for `headrace status --check`; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.names import TableName
from headrace.model.texts import counted, duration_text
from headrace.observe.snapshot import Snapshot
from headrace.observe.status import DatasetStatus, FlowStatus


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a check accepts; ``None`` for no limit. `lag`: records, or files of a flow that reads files.
    `age_s`: seconds since rows of a table or view have last changed."""

    lag: int | None = None
    age_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Something that is wrong, or that a limit asks for and that cannot be judged (`is_unknown`)."""

    dataset: TableName | None  # ``None`` for the pipeline
    flow: str | None
    text: str
    is_unknown: bool = False

    def name_within(self, default_schema: str) -> str:
        """The name of the flow, or of its dataset, for people."""
        if self.dataset is None:
            return "pipeline"
        name = self.dataset.within(default_schema)
        return name if self.flow in (None, self.dataset.name) else f"{name}/{self.flow}"

    def to_json(self) -> dict[str, Any]:
        dataset = None if self.dataset is None else str(self.dataset)
        return {"dataset": dataset, "flow": self.flow, "text": self.text, "unknown": self.is_unknown}


def find_troubles(snapshot: Snapshot, limits: Limits) -> Iterator[Trouble]:
    """The troubles of now. Datasets and flows that no file declares any more are not checked. A broker that
    does not answer does not count, unless the lag has a limit."""
    if snapshot.refusal is not None:
        yield Trouble(dataset=None, flow=None, text=snapshot.refusal.headline)
    for dataset in snapshot.datasets:
        if not dataset.orphaned:
            yield from _of_dataset(dataset, snapshot, limits)


def _of_dataset(dataset: DatasetStatus, snapshot: Snapshot, limits: Limits) -> Iterator[Trouble]:
    def trouble(text: str, flow: str | None = None, *, is_unknown: bool = False) -> Trouble:
        return Trouble(dataset=dataset.dataset, flow=flow, text=text, is_unknown=is_unknown)

    if dataset.problem is not None:
        yield trouble(f"cannot be read: {dataset.problem}")
    view = dataset.view
    if view is not None and view.state in ("failed", "skipped"):
        yield trouble(_why(view.state, view.error, view.reason))
    has_age = limits.age_s is not None and dataset.kind != "sink"
    if has_age and (found := judge_age(dataset, snapshot, limits.age_s or 0.0)):
        yield trouble(found[0], is_unknown=found[1])
    for flow in dataset.flows:
        if flow.orphaned:
            continue
        if flow.state in ("failed", "skipped", "stopped"):
            yield trouble(_why(flow.state, flow.error, flow.reason), flow.flow)
        elif flow.state == "unknown" and flow.driver is not None:
            yield trouble(f"its process does not answer: {flow.driver}", flow.flow)
        if limits.lag is not None and (found := judge_lag(flow, snapshot, limits.lag)):
            yield trouble(found[0], flow.flow, is_unknown=found[1])


def _why(state: str, error: Mapping[str, Any] | None, reason: str | None) -> str:
    if error is not None:
        return f"{state}: [{error.get('code')}] {error.get('summary')}"
    return state if reason is None else f"{state}: {reason}"


def judge_age(dataset: DatasetStatus, snapshot: Snapshot, most_s: float) -> tuple[str, bool] | None:
    """The trouble with the time since rows last changed, and whether that time is not known."""
    age = dataset.freshness_s(snapshot.at)
    if age is None:
        return "it is not known when its rows last changed", True
    limit = duration_text(most_s)
    return (f"has not changed for {duration_text(age)} (limit {limit})", False) if age > most_s else None


def judge_lag(flow: FlowStatus, snapshot: Snapshot, most: int) -> tuple[str, bool] | None:
    """The trouble with the lag, and whether the lag is not known."""
    noun = "record" if flow.lag_bytes is None else "file"
    if flow.lag is None:
        why = (
            "it has no batch yet"
            if flow.batch is None
            else snapshot.silence or "its sources do not report it"
        )
        return f"lag unknown: {why}", True
    if flow.lag > most:
        return f"{counted(flow.lag, noun)} behind (limit {most:,})", False
    if flow.behind_s is None:
        return None
    return f"lag unknown: {counted(flow.lag, noun)} or more, {duration_text(flow.behind_s)} behind", True
