"""The files of the example pipeline, which a user reads and edits."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from importlib.metadata import distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from headrace.declare.spec_model import SCHEMA_FILE, build_schema
from headrace.errors import FileExistsInTheWayError
from headrace.storage.layout import locate
from headrace.storage.location import Location

TOPIC = "sales"
"""The topic that the example pipeline reads."""

_RENAMED = {"gitignore": ".gitignore", "github": ".github"}
"""With their real names these files would also apply to this repository."""


def template_files(name: str, storage: Location | None = None) -> Mapping[str, str]:
    """The example pipeline's files: text by path, the spec first. `storage`: the folder ``lake`` beside the
    spec if it is ``None``."""
    texts = _read(files("headrace.project.template") / "pipeline")
    spec = texts["headrace.yml"].replace("name: sales\n", f"name: {name}\n", 1)
    if storage is not None:
        spec = spec.replace("storage: ./lake\n", f"storage: {json.dumps(storage.path)}\n", 1)
    texts["headrace.yml"] = spec
    return {**texts, SCHEMA_FILE: json.dumps(build_schema(), indent=1) + "\n"}


def files_around() -> Mapping[str, str]:
    """The files around a pipeline: a test, the packages that it needs, and a workflow that runs it."""
    texts = _read(files("headrace.project.template") / "around")
    requirement = own_requirement()
    note = "# Headrace with pytest, for `pip install -r requirements.txt`"
    if "file:" in requirement:
        note += "\n# This path exists on one machine only; a workflow needs an address that it can reach."
    return {**texts, "requirements.txt": f"{note}\n{requirement}\n"}


def own_requirement() -> str:
    """The requirement for `pip` that installs this Headrace: its origin, or its version."""
    installed = distribution("headrace")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    url, vcs = origin.get("url"), origin.get("vcs_info")
    if url is None:
        return f"headrace[test]=={installed.version}"
    return "headrace[test] @ " + (f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url)


def write_template(folder: Path, storage: str | None = None) -> tuple[Path, ...]:
    """Write the example pipeline, with the name of its folder; existing files are not changed. `storage`: a
    path or a URI of its storage."""
    root = None if storage is None else locate(storage)
    texts = {**template_files(pipeline_name(folder), root), **files_around()}
    if root is not None and not root.is_local:
        texts["requirements.txt"] = texts["requirements.txt"].replace("[test]", "[s3,test]")
    another = f"{folder.absolute().name}-2" if folder == Path() else f"{folder}-2"
    remedy = f"write it to another folder:   headrace init {shlex.quote(another)}"
    return write_new({folder / place: text for place, text in texts.items()}, remedy)


def write_new(wanted: Mapping[Path, str], remedy: str) -> tuple[Path, ...]:
    """Write files that do not exist yet."""
    if taken := [file for file in wanted if file.exists()]:
        raise FileExistsInTheWayError(
            f"{taken[0]} exists already; nothing was written",
            remedies=[remedy],
            params={"paths": [str(file) for file in taken]},
        )
    for file, text in wanted.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise locate(file).unwritable(error) from error
    return tuple(wanted)


def pipeline_name(folder: Path) -> str:
    """A valid name for a pipeline, from the name of its folder."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", folder.absolute().name).strip("_-") or "pipeline"


def _read(folder: Traversable, place: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    # The spec first, as a reader looks for it, and folders last.
    for item in sorted(
        folder.iterdir(), key=lambda one: (one.is_dir(), one.name != "headrace.yml", one.name)
    ):
        if item.is_file():
            found[place + _RENAMED.get(item.name, item.name)] = item.read_text(encoding="utf-8")
        elif item.name != "__pycache__":
            found |= _read(item, f"{place}{_RENAMED.get(item.name, item.name)}/")
    return found
