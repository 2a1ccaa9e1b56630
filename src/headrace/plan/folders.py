"""What a plan can know of its folders of files: how many there are, and how many do not belong."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import SourceLocation
from headrace.model.folders import FileFolder
from headrace.plan.stages import Plan, RunFlowStage
from headrace.sources.identity import files_identity


def find_files(plan: Plan) -> Plan:
    """The plan with what its files sources find now; a folder that cannot be listed is left out."""
    stages = [stage for stage in plan.stages if isinstance(stage, RunFlowStage)]
    found: dict[SourceLocation, str] = {}
    for source in (one for stage in stages for one in stage.planned.sources if one.kind == "files"):
        folder = FileFolder.of_identity(files_identity(source))
        try:
            found[source.location] = describe_folder(folder)
        except OSError:
            continue
    return replace(plan, folders=found)


def describe_folder(folder: FileFolder) -> str:
    """The files of a folder in words.

    Raises:
        OSError: It cannot be listed.
    """
    count = sum(1 for _ in folder.files())
    words = f"{count:,} file" + ("" if count == 1 else "s")
    if folder.glob is None:
        return words
    others = sum(1 for _ in replace(folder, glob=None).files()) - count
    match, miss = ("matches" if count == 1 else "match"), ("does" if others == 1 else "do")
    return f"{words} that {match} {folder.glob}" + (f" ({others:,} that {miss} not)" if others else "")
