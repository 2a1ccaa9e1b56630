from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pytest
from stores import At, ObjectsOnDisk, memory_location, object_location

from headrace.storage import layout as kinds
from headrace.storage.layout import locate
from headrace.storage.location import Location
from object_server import ObjectServer


@pytest.fixture(params=["local", "memory", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    """An empty folder: on a local disk, in an object store in memory, and in a bucket of a real server."""
    match request.param:
        case "memory":
            return memory_location()
        case "s3":
            server: ObjectServer = request.getfixturevalue("object_server")
            server.reach(monkeypatch)
            return locate(f"s3://{server.make_bucket()}/a lake")
        case _:
            return locate(tmp_path)


@pytest.fixture(params=["local", "objects"])
def at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> At:
    """Gives the location of a folder of this disk, once on a local disk and once in an object store."""
    if request.param == "local":
        return locate

    monkeypatch.setattr(kinds, "KINDS", {**kinds.KINDS, ObjectsOnDisk.scheme: lambda _: ObjectsOnDisk()})

    def open_files(path: str | Path, **options: Any) -> deltalake.DeltaTable:
        # `deltalake` has clients of its own.
        return original(str(path).removeprefix("memory://"), **options)

    original = deltalake.DeltaTable
    monkeypatch.setattr(deltalake, "DeltaTable", open_files)
    return object_location
