"""`headrace broker` says which broker it acts on; no broker is started here."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from headrace.runtime.places import BROKER_VARIABLE
from unit.cli.conftest import Call


@pytest.fixture(autouse=True)
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline; the user's data folder is empty."""
    monkeypatch.delenv(BROKER_VARIABLE)
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda name: str(tmp_path / "user"))
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "headrace.yml").write_text("name: shop\n")
    return folder


def test_the_commands_act_on_the_pipelines_broker(headrace: Call, pipeline: Path) -> None:
    found = headrace("broker", "status", "--project", "shop")
    assert found.out.startswith("the broker of pipeline shop: stopped")
    assert str(pipeline / ".headrace/broker") in found.out
    assert headrace("broker", "stop", "--project", "shop", "--json").data == {
        "was_running": False,
        "format_version": 1,
        "path": str(pipeline / ".headrace/broker"),
    }
    found = headrace("broker", "topics", "list", "--project", "shop")
    assert (found.exit_code, found.out.splitlines()[0]) == (
        0,
        "No topics. Create one: headrace broker topics create NAME",
    )
    assert not (pipeline / ".headrace").exists(), "it is not started to find that it has no topics"
    missing = headrace("broker", "topics", "delete", "orders", "--project", "shop", "--json")
    assert missing.data["error"]["code"] == "TOPIC_NOT_FOUND"


def test_outside_of_a_pipeline_it_is_the_shared_one(headrace: Call, tmp_path: Path) -> None:
    found = headrace("broker", "status")
    assert found.out.startswith("the shared broker (no pipeline is in this folder): stopped")
    assert str(tmp_path / "user/broker") in found.out
    assert headrace("broker", "status", "--json").data["pipeline"] is None
    assert headrace("broker", "status", "--project", "nowhere").exit_code == 2


def test_with_a_broken_spec_the_variable_names_the_broker(
    headrace: Call, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pipeline / "headrace.yml").write_text("nmae: shop\n")
    monkeypatch.chdir(pipeline)
    found = headrace("broker", "stop")
    assert found.exit_code == 2
    assert "headrace.yml" in found.err and "nmae" in found.err
    assert "HEADRACE_BROKER_DIR=FOLDER" in found.err
    monkeypatch.setenv("HEADRACE_BROKER_DIR", str(pipeline / "own"))
    found = headrace("broker", "status")
    assert (found.exit_code, found.err) == (0, "")
    assert str(pipeline / "own") in found.out
