"""`headrace checkpoint`: what the checkpoints of flows hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, VerbGroup, verb
from headrace.model.texts import counted, size_text

if TYPE_CHECKING:
    from headrace.maintain.checkpoints import FlowCheckpoint


@click.group(
    "checkpoint", cls=VerbGroup, examples=("headrace checkpoint show", "headrace checkpoint show orders")
)
def checkpoint() -> None:
    """Show the checkpoints of flows.

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


def _shown(found: FlowCheckpoint) -> Iterator[str]:
    facts = found.to_json()
    yield f"{found.flow}  writes {found.dataset.short}"
    if found.identity is None:
        yield f"  damaged     open a new checkpoint: headrace reset {found.flow}"
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


def _batch(number: int) -> str:
    return "no batch" if number < 0 else f"batch {number}"
