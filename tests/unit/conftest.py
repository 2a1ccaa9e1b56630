from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pytest
from stores import At, ObjectsOnDisk, memory_location, object_location

from headrace.storage import locate as kinds
from headrace.storage.locate import locate
from headrace.storage.location import Location


@pytest.fixture(params=["local", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """An empty folder, once on a local disk and once in an object store."""
    return memory_location() if request.param == "memory" else locate(tmp_path)


@pytest.fixture(params=["local", "objects"])
def at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> At:
    """Gives the location of a folder of this disk, once on a local disk and once in an object store."""
    if request.param == "local":
        return locate

    monkeypatch.setattr(kinds, "KINDS", {**kinds.KINDS, ObjectsOnDisk.scheme: ObjectsOnDisk()})

    def open_files(path: str | Path, **options: Any) -> deltalake.DeltaTable:
        # `deltalake` has clients of its own.
        return original(str(path).removeprefix("memory://"), **options)

    original = deltalake.DeltaTable
    monkeypatch.setattr(deltalake, "DeltaTable", open_files)
    return object_location
