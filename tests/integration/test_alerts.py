"""Alerts of real runs: a web hook is told what a person would see in the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.alerts.check import load_alerts
from headrace.cli.main import run
from headrace.errors import DatasetUnknownError
from headrace.model.events import AlertFired
from headrace.project.pipeline import Pipeline
from headrace.storage.layout import Storage
from hook_server import Hook, running_hook
from landing import Site
from waiting import until

CODE = """
import headrace as hr

@hr.table
@hr.expect_or_fail("positive", "id > 0")
def visits():
    return hr.read_files("landing", format="json", schema="id LONG")
"""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with running_hook() as hook:
        yield hook


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession, hook: Hook) -> Site:
    site = Site(tmp_path / "site")
    site.write(CODE)
    declare(site, hook, {"on": "flow_failed"})
    return site


def declare(site: Site, hook: Hook, *rules: dict[str, Any]) -> None:
    site.write_spec(alerts={"targets": {"ops": {"webhook": hook.url}}, "rules": rules})


def told(hook: Hook) -> list[tuple[str, str]]:
    return [(one.row["state"], one.row["text"]) for one in hook.taken]


def test_a_failed_flow_is_told_and_its_end(
    site: Site, hook: Hook, capsys: pytest.CaptureFixture[str]
) -> None:
    project = ["--project", str(site.root)]
    site.put("a.json", {"id": 1})
    site.run_well()
    assert hook.taken == []
    site.put("b.json", {"id": -1})
    assert run(["run", *project]) == 1
    ((state, text),) = told(hook)
    assert state == "firing" and text.startswith("visits has failed: [EXPECTATION_FAILED]")
    shown = capsys.readouterr()
    assert "alert: visits has failed" in shown.out + shown.err

    assert run(["alerts", "check", *project]) == 0  # nothing new
    assert f"alert  {text}" in capsys.readouterr().out
    assert run(["alerts", "show", "--json", *project]) == 0
    (alert,) = json.loads(capsys.readouterr().out)["alerts"]
    assert alert["text"] == text and alert["told"] == ["ops"]
    assert len(hook.taken) == 1

    site.write(CODE.replace("id > 0", "id > -5"))
    site.run_well()
    assert told(hook)[1:] == [("ended", text)]
    assert run(["alerts", "show", *project]) == 0
    assert "no alert" in capsys.readouterr().out
    with Pipeline.load(site.root) as pipeline:
        found = [one.details for one in pipeline.events() if one.type == "alert"]
    assert [one["state"] for one in found] == ["firing", "ended"]


def test_an_alert_ends_with_the_section_that_declares_it(site: Site, hook: Hook) -> None:
    declare(site, hook, {"on": "disk", "below": "100%"})
    site.put("a.json", {"id": 1})
    site.run_well()
    storage = Storage.at(str(site.root / "lake"), site.root)
    assert len(load_alerts(storage, "site")) == 1
    site.write_spec()
    site.run_well()
    assert load_alerts(storage, "site") == []


def test_an_update_that_cannot_plan_is_told(site: Site, hook: Hook) -> None:
    site.put("a.json", {"id": 1})
    site.write(CODE.replace("def visits():", "def visits():\n    raise RuntimeError('no luck')\n"))
    site.error()
    ((state, text),) = told(hook)
    assert state == "firing" and text.startswith("the update has failed: [") and "no luck" in text
    site.write(CODE)
    site.run_well()
    assert told(hook)[1:] == [("ended", text)]


def test_a_continuous_run_checks_while_it_runs(
    site: Site, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.project.alerting._CHECK_S", 0.1)
    declare(site, hook, {"on": "disk", "below": "100%"})
    site.put("a.json", {"id": 1})
    with site.held_at("before-commit", 0) as held:
        held.wait()
        until(lambda: any(isinstance(one, AlertFired) for one in list(held.events)), "no alert")
        assert len(hook.taken) == 1
    assert held.errors == [] and len(hook.taken) == 1


def test_a_proof_that_is_broken_is_told(site: Site, hook: Hook) -> None:
    declare(site, hook, {"on": "proof"})
    site.put("a.json", {"id": 1}, {"id": 2})
    site.run_well()
    project = ["--project", str(site.root)]
    assert run(["verify", *project]) == 0
    assert hook.taken == []
    site.put("b.json", {"id": 3})
    site.run_well()
    commit = max((site.storage.table(site.name()) / "_delta_log").glob("*.json"))
    commit.write_text(re.sub(r'(accepted\\": ?)1', r"\g<1>7", before := commit.read_text()))
    assert commit.read_text() != before
    assert run(["verify", *project]) == 1
    assert [state for state, _ in told(hook)] == ["firing"]


def test_a_target_that_is_away_fails_no_run_and_the_test_says_why(
    site: Site, hook: Hook, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = {"ops": {"webhook": hook.url}, "away": {"slack": "http://127.0.0.1:9/pl4nted"}}
    site.write_spec(alerts={"targets": targets, "rules": [{"on": "disk", "below": "100%"}]})
    site.put("a.json", {"id": 1})
    site.run_well()
    assert len(hook.taken) == 1
    project = ["--project", str(site.root)]
    assert run(["alerts", "test", "ops", *project]) == 0
    assert hook.taken[-1].row["state"] == "test"
    assert run(["alerts", "test", *project]) == 1
    shown = capsys.readouterr()
    assert "ops  sent" in shown.out and "ALERT_UNDELIVERED" in shown.err and "pl4nted" not in shown.err
    assert run(["alerts", "test", "opps", *project]) == 2
    assert "ops" in capsys.readouterr().err


def test_a_rule_for_an_unknown_dataset_is_refused(site: Site, hook: Hook) -> None:
    declare(site, hook, {"on": "lag", "above": 5, "datasets": ["visit"]})
    site.put("a.json", {"id": 1})
    error = site.error()
    assert isinstance(error, DatasetUnknownError) and "visits" in str(error.remedies)


def test_a_spec_without_alerts(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.write_spec()
    assert run(["alerts", "check", "--project", str(site.root)]) == 2
    assert "on: flow_failed" in capsys.readouterr().err
