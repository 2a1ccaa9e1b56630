from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pytest
from stores import At, copy_to, memory_location

from headrace.storage.locate import locate
from headrace.storage.location import Location


@pytest.fixture(params=["local", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """An empty folder, once on a local disk and once in an object store."""
    return memory_location() if request.param == "memory" else locate(tmp_path)


@pytest.fixture
def at(location: Location, monkeypatch: pytest.MonkeyPatch) -> At:
    """Finds what a test has written on this disk: there, and in an object store."""
    if location.files.scheme == "file":
        return locate

    def open_original(path: str | Path, **options: Any) -> deltalake.DeltaTable:
        # `deltalake` cannot read what `obstore` holds in memory.
        return original(str(path).removeprefix(str(location)), **options)

    original = deltalake.DeltaTable
    monkeypatch.setattr(deltalake, "DeltaTable", open_original)
    return lambda path: copy_to(location, path)
