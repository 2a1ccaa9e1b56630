"""The troubles of a pipeline, for probes and for `headrace status --check`; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.model.names import TableName
from headrace.model.texts import counted, duration_text
from headrace.observe.snapshot import Snapshot
from headrace.observe.status import DatasetStatus, FlowStatus


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a check accepts; ``None`` for no limit. `lag`: records, or files of a flow that reads files.
    `age_s`: seconds since the last commit of a flow, or the last refresh of a view that is not up to date."""

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
    """What is wrong now. Datasets and flows that no file declares any more are not checked. A broker that
    does not answer is no trouble, unless the lag has a limit."""
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
    if view is not None and view.state != "up to date" and limits.age_s is not None:
        if view.refreshed is None:
            yield trouble("no refresh yet")
        elif text := _age_text("refresh", view.refreshed, snapshot.at, limits.age_s):
            yield trouble(text)
    for flow in dataset.flows:
        if flow.orphaned:
            continue
        if flow.state in ("failed", "skipped", "stopped"):
            yield trouble(_why(flow.state, flow.error, flow.reason), flow.flow)
        elif flow.state == "unknown" and flow.driver is not None:
            yield trouble(f"its process does not answer: {flow.driver}", flow.flow)
        if limits.age_s is not None and dataset.kind != "sink":
            if flow.committed is None:
                is_unknown = flow.batch is not None
                text = "the time of its last commit is not known" if is_unknown else "no commit yet"
                yield trouble(text, flow.flow, is_unknown=is_unknown)
            elif text := _age_text("commit", flow.committed, snapshot.at, limits.age_s):
                yield trouble(text, flow.flow)
        if limits.lag is not None and (found := _lag_text(flow, limits.lag, snapshot.silence)):
            yield trouble(found[0], flow.flow, is_unknown=found[1])


def _why(state: str, error: Mapping[str, Any] | None, reason: str | None) -> str:
    if error is not None:
        return f"{state}: [{error.get('code')}] {error.get('summary')}"
    return state if reason is None else f"{state}: {reason}"


def _age_text(what: str, at: datetime, now: datetime, most: float) -> str:
    age = (now - at).total_seconds()
    return f"last {what} {duration_text(age)} ago, more than {duration_text(most)}" if age > most else ""


def _lag_text(flow: FlowStatus, most: int, silence: str | None) -> tuple[str, bool] | None:
    """What is wrong with the lag, and whether it is not known."""
    noun = "record" if flow.lag_bytes is None else "file"
    if flow.lag is None:
        why = "it has no batch yet" if flow.batch is None else silence or "its sources do not report it"
        return f"lag unknown: {why}", True
    if flow.lag > most:
        return f"lag {counted(flow.lag, noun)}, more than {most:,}", False
    if flow.behind_s is None:
        return None
    return f"lag unknown: {counted(flow.lag, noun)} or more, {duration_text(flow.behind_s)} behind", True
