"""The example pipeline, written for a user to read and edit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from headrace.errors import FileExistsInTheWayError
from headrace.state.files import unwritable

TOPIC = "sales"
"""The topic that the example pipeline reads."""

_RENAMED = {"gitignore": ".gitignore", "github": ".github"}
"""Under their real names they would rule this repository, too."""


def template_files(name: str) -> Mapping[str, str]:
    """The example pipeline's files: text by path, the spec first.

    Args:
        name: The pipeline's name.
    """
    texts = _read(files("headrace.project.template") / "pipeline")
    texts["headrace.yml"] = texts["headrace.yml"].replace("name: sales\n", f"name: {name}\n", 1)
    return texts


def files_around() -> Mapping[str, str]:
    """What a pipeline of one's own has beside its tables: a test, and what runs it on every change."""
    return _read(files("headrace.project.template") / "around")


def write_template(folder: Path) -> tuple[Path, ...]:
    """Write the example pipeline, named like its folder, and change nothing that is there already.

    Args:
        folder: Where to; made when it is missing.

    Returns:
        The files, the spec first.

    Raises:
        FileExistsInTheWayError: One of the files is there already; nothing was written.
        StorageUnwritableError: The folder cannot be written.
    """
    texts = {**template_files(pipeline_name(folder)), **files_around()}
    wanted = {folder / place: text for place, text in texts.items()}
    if taken := [file for file in wanted if file.exists()]:
        raise FileExistsInTheWayError(
            f"{taken[0]} exists already; nothing was written",
            remedies=["headrace init OTHER_FOLDER"],
            params={"files": [str(file) for file in taken]},
        )
    for file, text in wanted.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise unwritable(file, error) from error
    return tuple(wanted)


def pipeline_name(folder: Path) -> str:
    """A valid pipeline name made of the folder's."""
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
