"""The records and the refusals that all targets of the exactly-once protocol share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import errors
from headrace.errors import ONE_PROCESS
from headrace.model.counts import BatchCounts
from headrace.sinks.target import BatchStamp, OpenedGeneration, RefreshStamp, TargetReader
from headrace.state.facts import FENCED

FORMAT = 1


def batch_metadata(stamp: BatchStamp, counts: BatchCounts) -> dict[str, Any]:
    if stamp.replayed is not None:
        return {**replay_metadata(stamp), "rows": stamp.replayed, **counts.to_json()}
    return {**stamp_metadata(stamp), **counts.to_json(), "sources": [one.to_json() for one in stamp.ranges]}


def generation_metadata(opened: OpenedGeneration) -> dict[str, Any]:
    opens: dict[str, Any] = {
        "generation": opened.generation,
        "reason": opened.opening.reason,
        "fences": opened.opening.fences,
        "losses": [dict(loss) for loss in opened.opening.losses],
    }
    if opened.opening.repeats:
        opens["repeats"] = [dict(repeat) for repeat in opened.opening.repeats]
    if opened.renamed_from is not None:
        opens["renamed_from"] = {"flow": opened.renamed_from}
    if opened.opening.positions is None:
        return {
            "headrace": FORMAT,
            "pipeline": opened.pipeline,
            "flow": opened.flow,
            "checkpoint": opened.checkpoint,
            "opens": opens,
        }
    stamp = BatchStamp(
        pipeline=opened.pipeline,
        flow=opened.flow,
        checkpoint=opened.checkpoint,
        batch=0,
        ranges=opened.ranges,
    )
    return {**batch_metadata(stamp, BatchCounts(input=0, accepted=0)), "opens": opens}


def refresh_metadata(stamp: RefreshStamp, counts: BatchCounts | None = None, kept: int = 0) -> dict[str, Any]:
    """What a view records of a refresh. `kept`: how many accepted rows the view had before, if the commit
    only adds the others."""
    return {
        "headrace": FORMAT,
        "pipeline": stamp.pipeline,
        "view": stamp.view,
        "update": stamp.update,
        "definition": stamp.definition,
        "inputs": {name: dict(version) for name, version in stamp.inputs.items()},
        **({"began": stamp.began_ms} if stamp.began_ms else {}),
        **({"seconds": dict(stamp.seconds)} if stamp.seconds else {}),
        **({"exact": True, "settings": stamp.settings, "query": stamp.query} if stamp.exact else {}),
        **({} if counts is None else counts.to_json()),
        **({"kept": kept} if kept else {}),
    }


def stamp_metadata(stamp: BatchStamp) -> dict[str, Any]:
    return {
        "headrace": FORMAT,
        "pipeline": stamp.pipeline,
        "flow": stamp.flow,
        "checkpoint": stamp.checkpoint,
        "batch": stamp.batch,
    }


def replay_metadata(stamp: BatchStamp) -> dict[str, Any]:
    return {"headrace": FORMAT, "pipeline": stamp.pipeline, "flow": stamp.flow, "replay": stamp.replay}


def fenced(stamp: BatchStamp, held: int | None = None) -> errors.BatchFencedError:
    """The error for a batch that another driver has committed, or whose checkpoint was replaced (`held`)."""
    what = "replaced" if held == FENCED else "committed with"
    return errors.BatchFencedError(
        f"flow {stamp.flow}: another driver has {what} this checkpoint while batch {stamp.batch} was being "
        "written",
        facts=(f"checkpoint {stamp.checkpoint}", "this driver's rows were not committed"),
        remedies=(ONE_PROCESS,),
        params={"flow": stamp.flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch},
    )


def check_not_replaced(target: TargetReader, stamp: BatchStamp) -> None:
    """Refuse a batch whose checkpoint another process has replaced since the batch began."""
    if (state := target.state()) is not None and state.transactions.get(stamp.checkpoint) == FENCED:
        raise fenced(stamp, FENCED)


def check_opening(opened: OpenedGeneration, fed_by: str | None) -> None:
    """Refuse to open a generation if another process has opened one meanwhile. `fed_by`: the checkpoint that
    feeds the target for the flow now."""
    if fed_by != opened.replaces:
        raise _opened_meanwhile(opened, f"opened checkpoint {fed_by}", fed_by)


def check_fenced(opened: OpenedGeneration, held: int) -> None:
    """Refuse to fence a checkpoint that has committed a batch since the survey. `held`: its last batch."""
    if opened.fenced_at not in (None, held):
        what = f"committed batch {held} with checkpoint {opened.opening.fences}"
        raise _opened_meanwhile(opened, what, held)


def _opened_meanwhile(opened: OpenedGeneration, what: str, found: Any) -> errors.BatchFencedError:
    return errors.BatchFencedError(
        f"flow {opened.flow}: another process has {what} at the same time",
        facts=("nothing was written",),
        remedies=(ONE_PROCESS,),
        params={"flow": opened.flow, "checkpoint": opened.replaces, "found": found},
    )


def is_held(stamp: BatchStamp, held: int, target: str) -> bool:
    """Whether a target holds a batch whose checkpoint has committed up to the batch `held` (-1 for none)."""
    if held == stamp.batch:
        return True
    params: Mapping[str, Any] = {
        "flow": stamp.flow,
        "checkpoint": stamp.checkpoint,
        "batch": stamp.batch,
        "held": held,
    }
    remedies = (f"continue from the table:   headrace reset {stamp.flow}",)
    if held > stamp.batch:
        did = f"has committed batch {held} to {target}"
        what = "was replaced by a newer checkpoint" if held == FENCED else did
        raise errors.CheckpointBehindTableError(
            f"flow {stamp.flow}: batch {stamp.batch} is older than the last batch of the table",
            facts=(f"checkpoint {stamp.checkpoint} {what}", "the batch was not written"),
            remedies=remedies,
            params=params,
        )
    if held < stamp.batch - 1 and stamp.replay is None:
        raise errors.TableBehindCheckpointError(
            f"flow {stamp.flow}: the table lacks the batches between {held} and {stamp.batch}",
            facts=(f"table {target}, checkpoint {stamp.checkpoint}", "the batch was not written"),
            remedies=remedies,
            params=params,
        )
    return False
