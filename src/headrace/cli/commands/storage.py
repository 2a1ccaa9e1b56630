"""`headrace storage`: copies the storage of a pipeline."""

from __future__ import annotations

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, VerbGroup, option, verb
from headrace.model.texts import counted, size_text

_COPY = "headrace storage copy --to s3://shop-lake/v1"
_BACK = "headrace storage copy --storage s3://shop-lake/v1 --to ./lake"


@click.group("storage", cls=VerbGroup, examples=(_COPY, _BACK))
def storage() -> None:
    """Copy the storage of a pipeline, to a bucket or to a folder."""


@verb(group=storage, examples=(_COPY, _BACK))
@option("--to TARGET", "The new storage: an empty folder, or a new prefix such as s3://B/P.", required=True)
def copy(invocation: Invocation, to: str) -> Result:
    """Copy the storage with everything in it, and check each file.

    All commands refuse an interrupted copy; type the command again, and it goes on. The copy is refused while
    a flow runs. The storage that is copied stays as it is. Starts no Spark.
    """
    from headrace.project.copying import copy_storage
    from headrace.storage.layout import Storage

    source = invocation.settings().storage
    with invocation.output.progress(f"Copying {source.root}"):
        done = copy_storage(source, Storage.at(to))
    size, target = size_text(done["size_bytes"]), done["target"]
    text = (
        f"Copied {counted(done['files'], 'file')} ({size}) from {source.root} to {target}.\n"
        f"Next: write `storage: {target}` in headrace.yml, then: headrace verify, headrace run\n"
        f"Do not run {source.root} again: its tables and those of the copy would differ."
    )
    return Result(data={"done": True, **done}, text=text)
