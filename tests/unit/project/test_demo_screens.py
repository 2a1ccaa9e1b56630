"""What the demo prints at its end works as it is typed."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli.main import run
from headrace.declare.spec import load_project
from headrace.model.names import TableName
from headrace.project.demo.folder import DemoFolder
from headrace.project.demo.screens import _reading_lines
from headrace.project.template.files import template_files
from headrace.storage.layout import locate
from object_server import open_buckets


def test_the_closing_commands_read_the_tables_of_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_buckets(monkeypatch)  # specs of other tests have settings for all buckets
    folder = DemoFolder(tmp_path)
    for name, text in template_files("demo", locate("s3://closing-commands/demo")).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    result: Any = SimpleNamespace(
        folder=folder, settings=load_project(folder.path), gold=TableName("default", "gold")
    )
    lines = list(_reading_lines(result))
    assert lines[0] == "Everything in s3://closing-commands/demo is plain Delta:"
    assert "read gold --limit 5" in lines[1]


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_the_closing_commands_act_on_the_demos_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_elsewhere: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_BROKER_DIR", "elsewhere")
    if not is_elsewhere:
        monkeypatch.delenv("HEADRACE_BROKER_DIR")
    folder = DemoFolder(tmp_path / "my demo")
    folder.path.mkdir()
    (folder.path / "headrace.yml").write_text("name: demo\n")
    result: Any = SimpleNamespace(
        folder=folder, settings=load_project(folder.path), gold=TableName("default", "gold")
    )
    lines = [line.strip() for line in _reading_lines(result)]
    assert ("unset HEADRACE_BROKER_DIR" in lines) is is_elsewhere
    monkeypatch.delenv("HEADRACE_BROKER_DIR", raising=False)
    (stop,) = (shlex.split(line) for line in lines if "broker stop" in line)
    assert run(stop[1:]) == 0
    assert str(folder.broker) in capsys.readouterr().out
