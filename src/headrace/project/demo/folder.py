"""The demo's folder: written for the user to read and edit, renewed by the next demo."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from headrace.errors import DemoFolderTakenError, StorageUnwritableError

_OWN = ".demo"
_WRITTEN = "written.json"
_EDITED = "edited"
_LAKE = "lake"


@dataclass(frozen=True)
class DemoFolder:
    """What the demo keeps where.

    Args:
        path: The pipeline's folder.
        renewed: Whether an earlier demo had left one, which was taken away.
        kept: Where files went that the user had changed or added since then.
    """

    path: Path
    renewed: bool = False
    kept: Path | None = None

    @property
    def own(self) -> Path:
        """What is the demo's and not the pipeline's."""
        return self.path / _OWN

    @property
    def broker(self) -> Path:
        return self.own / "broker"

    @property
    def driver_log(self) -> Path:
        return self.own / "driver.log"


def find_demo(path: Path) -> DemoFolder | None:
    """The folder that an earlier demo has left; ``None`` where there is nothing yet.

    Raises:
        DemoFolderTakenError: Something is there that no demo has written.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None
    if path.is_dir() and (path / _OWN / _WRITTEN).is_file():
        return DemoFolder(path)
    what = "a folder that no demo has written" if path.is_dir() else "a file"
    raise DemoFolderTakenError(
        f"{path} is {what}",
        facts=("nothing was changed",),
        remedies=("headrace demo --directory another-folder",),
        params={"path": str(path)},
    )


def write_demo(path: Path, files: Mapping[str, str]) -> DemoFolder:
    """Write the pipeline, in place of an earlier demo's.

    The broker and the runs of the earlier demo must have ended.

    Args:
        path: The folder.
        files: Text by relative path.

    Raises:
        DemoFolderTakenError: Something is there that no demo has written.
        StorageUnwritableError: The folder cannot be written.
    """
    before = find_demo(path)
    try:
        kept = None if before is None else _clear(before)
        own = path / _OWN
        own.mkdir(parents=True, exist_ok=True)
        # First what makes the folder ours: a demo that ends here is renewed, not refused.
        sums = {name: _sum(text.encode()) for name, text in files.items()}
        (own / _WRITTEN).write_text(json.dumps(sums, indent=2), encoding="utf-8")
        for name, text in files.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageUnwritableError(
            f"{path} cannot be written: {error.strerror}",
            remedies=("headrace demo --directory another-folder",),
            params={"path": str(path)},
        ) from error
    return DemoFolder(path, renewed=before is not None, kept=kept)


def _clear(demo: DemoFolder) -> Path | None:
    """Take away what the earlier demo had made; what the user has changed or added is moved aside."""
    sums: dict[str, str] = json.loads((demo.own / _WRITTEN).read_text(encoding="utf-8"))
    aside = demo.path / _EDITED / f"{datetime.now():%Y-%m-%d-%H%M%S}"
    kept = None
    shutil.rmtree(demo.path / _LAKE, ignore_errors=True)
    shutil.rmtree(demo.broker, ignore_errors=True)
    for file in sorted(path for path in demo.path.rglob("*") if path.is_file()):
        name = file.relative_to(demo.path)
        # Hidden folders are the demo's own, or belong to the user's tools.
        if name.parts[0].startswith(".") or name.parts[0] == _EDITED or "__pycache__" in name.parts:
            continue
        if sums.get(name.as_posix()) == _sum(file.read_bytes()):
            file.unlink()
            continue
        kept = aside
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        file.replace(aside / name)
    return kept


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
