"""What a command starts and downloads: no more than it needs."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from headrace.cli.main import run
from headrace.cli.output import TextOutput
from headrace.cli.watching import spark_starting
from headrace.errors import HeadraceError
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import JarCache, locked_jars


def test_spark_needs_no_jars_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", str(tmp_path / "missing.xml"))
    cache = JarCache()
    cache.folder.mkdir()
    checked = {}
    for jar in locked_jars("spark"):
        cache.path(jar).touch()
        checked[jar.sha256] = [0, cache.path(jar).stat().st_mtime_ns]
    (cache.folder / "checked.json").write_text(json.dumps(checked))
    with spark_starting(TextOutput(stdout=io.StringIO(), stderr=io.StringIO()), "Starting Spark"):
        pass
    with pytest.raises(HeadraceError, match="HEADRACE_IVY_SETTINGS"):
        ensure_jars("broker")


def test_no_engine_is_for_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for before in (None, "on"):
        if before is not None:
            monkeypatch.setenv("HEADRACE_ENGINE", before)
        else:
            monkeypatch.delenv("HEADRACE_ENGINE", raising=False)
        assert run(["plan", "--no-engine"]) == 2, "there is no pipeline"
        assert os.environ.get("HEADRACE_ENGINE") == before
