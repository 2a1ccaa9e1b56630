"""`headrace doctor`: what it shows of the checks, and when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pytest

from headrace.runtime.doctor import Check


class Called(Protocol):
    exit_code: int
    out: str
    err: str
    data: Any


class Call(Protocol):
    def __call__(self, *arguments: str) -> Called: ...


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """What the checks find; the pipeline that they were given is kept as the last one's text."""
    found = [Check("java", "ok", "25 from the wheel")]

    def run_checks(project: Any) -> list[Check]:
        return [*found, Check("pipeline", "ok", "none" if project is None else project.name)]

    monkeypatch.setattr("headrace.runtime.doctor.run_checks", run_checks)
    return found


def test_it_works_outside_of_a_pipeline(headrace: Call, checks: list[Check]) -> None:
    called = headrace("doctor")
    assert called.exit_code == 0
    assert called.out == "✓ java      25 from the wheel\n✓ pipeline  none\n"


def test_inside_of_a_pipeline_it_looks_at_that(headrace: Call, checks: list[Check], tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\n")
    assert headrace("doctor", "--json").data["checks"][-1]["text"] == "shop"


def test_what_would_stop_a_run_fails_with_its_remedy(headrace: Call, checks: list[Check]) -> None:
    checks.append(Check("ports", "fail", "none is free", "end a program"))
    called = headrace("doctor")
    assert called.exit_code == 1
    assert "✗ ports" in called.out
    assert "help: end a program" in called.out
    assert headrace("doctor", "--json").data["ok"] is False


def test_a_warning_is_no_failure(headrace: Call, checks: list[Check]) -> None:
    checks.append(Check("memory", "warn", "little", "end a program"))
    assert headrace("doctor").exit_code == 0


def test_a_pipeline_that_is_named_must_be_there(headrace: Call, checks: list[Check]) -> None:
    called = headrace("doctor", "--project", "nowhere")
    assert called.exit_code == 2
    assert "error[SPEC_NOT_FOUND]" in called.err


def test_a_wrong_spec_is_an_error_with_its_place(headrace: Call, checks: list[Check], tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\nstorag: x\n")
    called = headrace("doctor")
    assert called.exit_code == 2
    assert "  --> headrace.yml:2:1\n   |\n 2 | storag: x\n   | ^^^^^^\n" in called.err
