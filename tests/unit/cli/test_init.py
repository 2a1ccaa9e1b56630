"""`headrace init`: the example pipeline is written, loads, and is never written over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import jsonschema
import pytest
from ruamel.yaml import YAML

from headrace.declare.loader import load_declarations
from headrace.declare.spec import load_project
from headrace.project.template.files import template_files


class Called(Protocol):
    exit_code: int
    out: str
    err: str
    data: dict[str, Any]


class Call(Protocol):
    def __call__(self, *arguments: str) -> Called: ...


def test_it_writes_a_pipeline_named_like_its_folder(headrace: Call, tmp_path: Path) -> None:
    called = headrace("init", "my shop")
    assert called.exit_code == 0
    assert "headrace.yml" in called.out
    assert "\n  cd 'my shop'\n" in called.out, "what comes next can be typed"
    assert "headrace init 'my shop-2'" in headrace("init", "my shop").err
    settings = load_project(tmp_path / "my shop")
    assert settings.name == "my_shop"
    declared = load_declarations(settings, None)  # type: ignore[arg-type]
    assert [str(one.name) for one in declared.datasets] == [
        "default.bronze",
        "default.gold",
        "default.silver",
    ]
    assert [flow.name for flow in declared.flows] == ["bronze", "default.gold", "silver"]
    assert all(one.comment for one in declared.datasets)


def test_every_profile_of_the_example_is_sound(
    headrace: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headrace("init", "shop")
    for name in ("KAFKA_BROKERS", "KAFKA_USER", "KAFKA_PASSWORD"):
        monkeypatch.setenv(name, "x:9092")
    assert load_project(tmp_path / "shop", profile="prod").kafka.bootstrap_servers == "x:9092"
    assert load_project(tmp_path / "shop").kafka.is_embedded


def test_a_test_and_a_workflow_lie_beside_it(headrace: Call, tmp_path: Path) -> None:
    data = headrace("init", "shop", "--json").data
    written = {str(Path(file).relative_to("shop")) for file in data["paths"]}
    assert {".gitignore", "tests/test_pipeline.py", ".github/workflows/pipeline.yml"} < written
    workflow = YAML(typ="safe").load(tmp_path / "shop" / ".github" / "workflows" / "pipeline.yml")
    commands = [step["run"] for step in workflow["jobs"]["check"]["steps"] if "run" in step]
    assert commands == ["python -m pip install -r requirements.txt", "headrace plan --offline", "pytest"]
    requirement = (tmp_path / "shop" / "requirements.txt").read_text().splitlines()[-1]
    assert requirement.startswith("headrace[test]")


def test_editors_get_a_schema_of_the_spec(
    headrace: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headrace("init", "shop")
    text = (tmp_path / "shop" / "headrace.yml").read_text()
    assert text.startswith("# yaml-language-server: $schema=headrace.schema.json\n")
    schema = json.loads((tmp_path / "shop" / "headrace.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    spec = YAML(typ="safe").load(text)
    assert list(check.iter_errors(spec)) == []
    spec |= {"trigger": "10 seconds", "consumer_groups": "${PUBLISH:-true}", "on_data_loss": "record"}
    spec["kafka"]["fetch.max.bytes"] = 1000
    assert list(check.iter_errors(spec)) == []
    for wrong in ({"storrage": "x"}, {"on_data_loss": "ignore"}, {"profiles": {"prod": {"kafca": {}}}}):
        assert list(check.iter_errors(spec | wrong)), wrong


def test_it_writes_nothing_over(headrace: Call, tmp_path: Path) -> None:
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "silver.py").write_text("mine")
    called = headrace("init", "--json")
    assert called.exit_code == 2
    assert called.data["error"]["code"] == "FILE_EXISTS"
    assert (tmp_path / "transformations" / "silver.py").read_text() == "mine"
    assert not (tmp_path / "headrace.yml").exists()


def test_the_next_steps_name_the_commands(headrace: Call) -> None:
    data = headrace("init", "shop", "--json").data
    assert data["pipeline"] == "shop"
    assert data["next"][0] == "cd shop"
    assert "headrace run" in data["next"]


def test_the_tables_and_the_broker_of_the_example_stay_out_of_git() -> None:
    assert {"/lake/", "/.headrace/"} < set(template_files("shop")[".gitignore"].splitlines())
