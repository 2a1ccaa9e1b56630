"""The command line, called in this process."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import run


@dataclass(frozen=True)
class Called:
    """What one command line gave."""

    exit_code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Called]


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_PROFILE", raising=False)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_LOGS", raising=False)
    monkeypatch.setenv("HEADRACE_BROKER_DIR", str(tmp_path / "broker"))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str]) -> Call:
    """Call the command line: ``headrace("plan", "--json")``."""

    def call(*arguments: str) -> Called:
        exit_code = run(arguments)
        captured = capsys.readouterr()
        return Called(exit_code, captured.out, captured.err)

    return call
