from __future__ import annotations

from pathlib import Path

import pytest
from object_files import memory_location

from headrace.storage.locate import locate
from headrace.storage.location import Location


@pytest.fixture(params=["local", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """An empty folder, once on a local disk and once in an object store."""
    return memory_location() if request.param == "memory" else locate(tmp_path)
