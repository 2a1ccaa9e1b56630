"""`headrace checkpoint`: what the checkpoints of flows hold, and how damaged ones are repaired."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from headrace.cli.output import UNCHANGED, Result
from headrace.cli.verb import Invocation, VerbGroup, option, verb
from headrace.model.texts import counted, size_text

if TYPE_CHECKING:
    from headrace.maintain.checkpoints import FlowCheckpoint
    from headrace.project.checkpoints import CheckpointReport


@click.group(
    "checkpoint", cls=VerbGroup, examples=("headrace checkpoint show", "headrace checkpoint validate orders")
)
def checkpoint() -> None:
    """Show, validate or repair the checkpoints of flows.

    A checkpoint is the folder in which Spark keeps the progress of a stream, and its state. Starts no Spark.
    """


_flows = click.argument("flows", nargs=-1, metavar="[FLOW]..")


@verb(group=checkpoint, examples=("headrace checkpoint show", "headrace checkpoint show orders --json"))
@_flows
def show(invocation: Invocation, flows: tuple[str, ...]) -> Result:
    """Show the content of each flow's checkpoint.

    Shows the batches, the offset at which each source continues, the watermark, the state size, and the
    files.
    """
    with invocation.pipeline() as pipeline, invocation.output.progress("Reading"):
        found = pipeline.checkpoints.show(flows)
        data = {"checkpoints": [one.to_json() for one in found]}
        lines = [line for one in found for line in _shown(one)]
    return Result(data=data, text="\n".join(lines) or "The storage has no checkpoints.")


@verb(
    group=checkpoint, examples=("headrace checkpoint validate", "headrace checkpoint validate orders --json")
)
@_flows
def validate(invocation: Invocation, flows: tuple[str, ...]) -> Result:
    """Check the checkpoint files that a run needs to continue.

    The exit code is 1 if a file is damaged or missing.
    """
    with invocation.pipeline() as pipeline, invocation.output.progress("Reading"):
        found = pipeline.checkpoints.validate(flows)
    return Result(
        data={"checkpoints": [one.to_json() for one in found]},
        text="\n".join(line for one in found for line in _judged(one)) or "The storage has no checkpoints.",
        exit_code=1 if any(one.problems for one in found) else 0,
    )


@verb(
    group=checkpoint,
    examples=("headrace checkpoint repair orders", "headrace checkpoint repair orders --yes"),
)
@click.argument("flows", nargs=-1, required=True, metavar="FLOW..")
@option("--yes", "Do not ask for confirmation.")
def repair(invocation: Invocation, flows: tuple[str, ...], yes: bool) -> Result:
    """Repair the damaged files of a checkpoint if this is safe.

    If the table already has the rows of a batch, the offsets of the batch are restored from the table.
    Otherwise Spark plans the batch again. The command first shows the planned repairs, and asks for
    confirmation. It keeps the damaged files in the folder `backups` of the storage. It is refused while the
    flow runs. The exit code is 1 if some damage cannot be repaired.
    """
    output = invocation.output
    with invocation.pipeline() as pipeline:
        with output.progress("Reading"):
            found = pipeline.checkpoints.validate(flows)
        lines = [line for one in found for line in _judged(one)]
        lost = any(one.problems and not one.can_be_repaired for one in found)
        if not any(one.can_be_repaired for one in found):
            return Result(data={"done": False, "repaired": []}, text="\n".join(lines), exit_code=int(lost))
        # The question asks for what the help of a report says.
        lines = [line for line in lines if not line.startswith("  help: headrace checkpoint repair ")]
        remedy = f"headrace checkpoint repair {' '.join(flows)} --yes"
        if not (yes or output.agrees(lines, "Repair?", remedy)):
            return UNCHANGED
        done = pipeline.checkpoints.repair(flows)
        backups = pipeline.settings.storage.backups
    names = ", ".join(one.checkpoint.flow for one in done)
    text = f"Repaired: {names}. The damaged files are in {backups}.\nNext: headrace run"
    return Result(
        data={"done": True, "repaired": [one.to_json() for one in done], "backups": str(backups)},
        text=text,
        exit_code=int(lost),
    )


def _shown(found: FlowCheckpoint) -> Iterator[str]:
    facts = found.to_json()
    yield f"{found.flow}  writes {found.dataset.short}"
    if found.identity is None:
        yield f"  damaged     see: headrace checkpoint validate {found.flow}"
        return
    yield f"  checkpoint  {found.identity.checkpoint}, opened {found.identity.created}"
    yield (
        f"  batches     {_batch(found.last_planned)} planned, {_batch(found.last_finished)} finished, "
        f"{_batch(found.committed)} in the table"
    )
    for source in found.sources:
        position = "an unknown position" if source.position is None else json.dumps(source.position.to_json())
        yield f"  source      {source.title} continues at {position}"
    if facts["watermark"] is not None:
        yield f"  watermark   {facts['watermark']}"
    for one in found.state:
        yield (
            f"  state       operator {one.operator}: {counted(one.partitions, 'partition')}, "
            f"{counted(one.files, 'file')}, {size_text(one.size_bytes)}"
        )
    yield f"  files       {counted(facts['files'], 'file')}, {size_text(facts['size_bytes'])} in {found.path}"
    if found.replaced:
        yield f"  replaced    {counted(len(found.replaced), 'earlier checkpoint')} of this flow"


def _judged(report: CheckpointReport) -> Iterator[str]:
    found = report.checkpoint
    if not report.problems:
        yield f"{found.flow}  no damaged files"
        return
    yield f"{found.flow}  {counted(len(report.problems), 'damaged file')} in {found.path}"
    for one in report.problems:
        yield f"  {'/'.join(one.file.below(found.path))}: {one.found}"
        if one.repair is not None:
            yield f"    repair: {one.repair.action}"
        else:
            yield "    this file cannot be repaired"
    yield f"  help: {_remedy(report)}"


def _remedy(report: CheckpointReport) -> str:
    flow = report.checkpoint.flow
    if report.can_be_repaired:
        return f"headrace checkpoint repair {flow}"
    dataset = report.checkpoint.dataset.short
    return f"headrace reset {flow}   (a stateful flow: headrace full-refresh {dataset})"


def _batch(number: int) -> str:
    return "no batch" if number < 0 else f"batch {number}"
