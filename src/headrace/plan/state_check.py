"""Checks with Spark's own rules whether the state of a checkpoint fits a changed query.

Spark makes these checks in the middle of a run, when it plans the first batch after a restart. Here it plans
the same batch over a copy of the state's descriptions, and runs nothing.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.declarations import AppendFlow
from headrace.model.state_mismatch import StateMismatch, find_mismatch
from headrace.plan.intercept import suspended
from headrace.plan.stages import Plan, PlannedFlow, RunFlowStage
from headrace.state.identity import generations, load_query
from headrace.state.offset_log import load_state, offsets_path
from headrace.storage.location import Location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from headrace.plan.resolver import Resolved

_LOG = logging.getLogger(__name__)
_METADATA = "_metadata"
_ASKS_PYTHON = re.compile(r"\bTransformWithState")
"""Spark runs the user's code to learn the state of these operators."""


def with_state_checks(session: SparkSession, plan: Plan, resolved: Mapping[str, Resolved]) -> Plan:
    """Add to each flow whose query has changed why its checkpoint's state does not fit; writes nothing."""
    found = {
        planned.flow.name: mismatch
        for planned in plan.flows
        if (mismatch := _mismatch(session, planned, resolved[planned.flow.name], plan)) is not None
    }
    if not found:
        return plan

    def marked(stage: Any) -> Any:
        name = stage.planned.flow.name if isinstance(stage, RunFlowStage) else None
        if name not in found:
            return stage
        return RunFlowStage(planned=replace(stage.planned, state_mismatch=found[name]))

    levels = tuple(tuple(marked(stage) for stage in level) for level in plan.all_levels)
    return replace(plan, all_levels=levels)


def _mismatch(
    session: SparkSession, planned: PlannedFlow, resolved: Resolved, plan: Plan
) -> StateMismatch | None:
    flow = planned.flow
    folder = plan.project.storage.flow_checkpoints(flow.target, flow.name)
    checkpoint = None
    try:
        checkpoint = _changed_checkpoint(folder, planned)
        if checkpoint is not None and not _ASKS_PYTHON.search(resolved.plan.text):
            with suspended():
                _plan_batch(session, planned, resolved, checkpoint)
    except Exception as error:
        # Spark decides in the run whatever is not certain here.
        mismatch = find_mismatch(str(error), str(checkpoint))
        if mismatch is None:
            _LOG.info("the state of flow %s was not checked", flow.name, exc_info=error)
        return mismatch
    return None


def _changed_checkpoint(folder: Location, planned: PlannedFlow) -> Location | None:
    """The checkpoint of a flow, if it was last used with another query and either one keeps state."""
    checkpoints = generations(folder)
    if not checkpoints:
        return None
    record = load_query(checkpoints[-1])
    if record is not None and record.fingerprint == planned.fingerprint:
        return None
    keeps_state = planned.stateful or (checkpoints[-1] / "state").list_folders()
    return checkpoints[-1] if keeps_state else None


def _plan_batch(
    session: SparkSession, planned: PlannedFlow, resolved: Resolved, checkpoint: Location
) -> None:
    """Let Spark plan the next batch of a checkpoint."""
    batches = load_state(checkpoint)
    if batches.last_planned < 0:
        return
    jvm: Any = session._jvm
    java_session = session._jsparkSession.cloneSession()
    metadata = offsets_path(checkpoint, batches.last_planned).read_text().splitlines()[1]
    # As in a run, the settings with which the state was made replace those of the session.
    for key, value in {**planned.flow.spark_conf, **json.loads(metadata).get("conf", {})}.items():
        java_session.conf().set(key, value)
    streaming = jvm.org.apache.spark.sql.execution.streaming
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    grouped = isinstance(planned.flow, AppendFlow) and planned.flow.groups is not None
    run = jvm.java.util.UUID.fromString(str(uuid.uuid4()))
    with tempfile.TemporaryDirectory(prefix="headrace-state-") as folder:
        copy = Path(folder).resolve()
        _copy_descriptions(checkpoint / "state", copy / "state")
        execution = streaming.runtime.IncrementalExecution(
            java_session,
            resolved.frame._jdf.queryExecution().analyzed(),
            modes.Update() if grouped else modes.Append(),
            (copy / "state").as_uri(),
            run,
            run,
            batches.last_finished + 1,
            jvm.scala.Option.empty(),
            _module(streaming.checkpointing, "OffsetSeqMetadata$").apply(metadata),
            _module(streaming.runtime, "WatermarkPropagator$").noop(),
            True,
            jvm.scala.collection.mutable.HashMap(),
            jvm.scala.collection.mutable.HashMap(),
            jvm.org.apache.spark.sql.execution.CommandExecutionMode.ALL(),
            False,
        )
        execution.executedPlan()


def _module(package: Any, name: str) -> Any:
    """A Scala object."""
    return getattr(getattr(package, name), "MODULE$")


def _copy_descriptions(state: Location, target: Path) -> None:
    """Copy what Spark compares: the operators, and the columns of their stores. Spark would add to them."""
    for operator in state.list_folders():
        for path in _described(state / operator):
            names = path.below(state)
            file = target.joinpath(*names)
            file.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                file.write_bytes(path.read_bytes())


def _described(operator: Location) -> Iterator[Location]:
    # Every partition has the same columns, and Spark compares those of the first one.
    first = operator / "0"
    for folder in (operator, first, *(first / name for name in first.list_folders() if name != _METADATA)):
        yield from (folder / _METADATA / name for name in (folder / _METADATA).list_files())
