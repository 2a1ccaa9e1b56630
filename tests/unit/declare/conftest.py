"""A pipeline's folder that a test fills with files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.declare.loader import load_declarations
from headrace.declare.spec import load_project
from headrace.model.declarations import Declarations

Write = Callable[..., Path]
Load = Callable[..., Declarations]


@pytest.fixture(autouse=True)
def _no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_PROFILE", raising=False)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write files of a pipeline: ``write({"transformations/a.py": ".."}, spec="..")``."""

    def fill(files: dict[str, str], spec: str = "name: shop\n") -> Path:
        for name, text in {"headrace.yml": spec, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return fill


@pytest.fixture
def load(write: Write) -> Load:
    """Load a pipeline of one file, or of the files given."""

    def run(source: str | dict[str, str], spec: str = "name: shop\n") -> Declarations:
        files = {"transformations/tables.py": source} if isinstance(source, str) else source

        def no_session() -> None:
            raise AssertionError("loading must not ask for a session")

        return load_declarations(load_project(write(files, spec)), no_session)

    return run
