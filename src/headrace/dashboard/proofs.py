"""The last proof of a pipeline, and the ranges of the newest batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.dashboard.site import PipelineView
from headrace.dashboard.topics import last_ranges
from headrace.project.last_results import load_result
from headrace.sources.kafka.position import KafkaOffsets

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.model.ranges import SourceRange

_BATCHES = 40  # the newest batches of a flow whose ranges are drawn
_WIDTH = 1000.0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One batch in one partition, in units of a drawing that is 1000 wide."""

    x: float
    width: float
    version: int
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One partition: the ranges of the newest batches, one after another."""

    flow: str
    dataset: str
    topic: str
    partition: int
    first: int
    end: int
    segments: tuple[Segment, ...]


def page(view: PipelineView, request: Request) -> Mapping[str, Any]:
    proof = load_result(view.settings, view.name, "proof")
    at = None if proof is None else datetime.fromisoformat(proof["at"])
    names = {str(one["dataset"]) for one in (proof or {}).get("datasets", ())}
    reports = [list(_reports(one)) for one in (proof or {}).get("datasets", ())]
    left = [one for found in reports for one in found if one["verdict"] in ("partial", "unjudged")]
    return {"proof": proof, "at": at, "bars": list(load_bars(view, names)), "reports": reports, "left": left}


def _reports(dataset: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The grades of a dataset, one line each."""
    name = dataset["dataset"]
    for flow in dataset["flows"]:
        for grade, report in flow["grades"].items():
            yield {
                "dataset": name,
                "flow": flow["flow"],
                "grade": grade,
                "version": flow["version"],
                **report,
            }
    yield {"dataset": name, "flow": None, "grade": "table", "version": dataset["version"], **dataset["table"]}
    if (view := dataset["view"]) is not None:
        verdict = "proven" if view["fresh"] else "partial"
        facts = {"text": view["text"], "verdict": verdict, "reasons": [], "findings": []}
        yield {"dataset": name, "flow": None, "grade": "view", "version": view["version"], **facts}
    for extra in ("sample", "query"):
        if dataset[extra] is not None:
            version = dataset["version"]
            yield {"dataset": name, "flow": None, "grade": extra, "version": version, **dataset[extra]}


def load_bars(view: PipelineView, names: set[str]) -> Iterator[Bar]:
    """The ranges of the newest batches of each flow that reads topics, by partition."""
    for key, status in view.datasets().items():
        for flow in status.flows if key in names or not names else ():
            if flow.checkpoint is not None:
                ranges = last_ranges(view, key, flow.checkpoint, _BATCHES)
                yield from _bars(key, flow.flow, ranges)


def _bars(dataset: str, flow: str, ranges: Sequence[tuple[int, SourceRange]]) -> Iterator[Bar]:
    found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for version, one in ranges:
        if isinstance(one.until, KafkaOffsets):
            for topic, partition, first, end in one.until.since(one.start):
                found.setdefault((topic, partition), []).append((version, first, end))
    for (topic, partition), parts in sorted(found.items()):
        least, most = min(one[1] for one in parts), max(one[2] for one in parts)
        scale = _WIDTH / max(most - least, 1)
        segments = tuple(
            Segment(
                x=round((first - least) * scale, 2),
                width=round((end - first) * scale, 2),
                version=version,
                first=first,
                end=end,
            )
            for version, first, end in sorted(parts)
        )
        yield Bar(
            flow=flow,
            dataset=dataset,
            topic=topic,
            partition=partition,
            first=least,
            end=most,
            segments=segments,
        )
