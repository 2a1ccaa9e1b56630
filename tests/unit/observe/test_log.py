"""The log of an update: what it holds, what it leaves alone, and what becomes of old ones."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import LogSettingInvalidError
from headrace.model.events import BatchCommitted, BatchStarted, FlowFailed, UpdateStarted
from headrace.model.names import TableName
from headrace.model.project import LogFormat, ProjectSettings
from headrace.observe import log as log_module
from headrace.observe.log import LogSettings, UpdateLog, log_folder, newest_log, spark_log, update_log
from headrace.project.engine import Engine
from headrace.project.pipeline import Pipeline

ORDERS = TableName("default", "orders")


@pytest.fixture
def settings(
    make_project: Callable[..., ProjectSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ProjectSettings:
    monkeypatch.setenv("HEADRACE_LOGS", str(tmp_path / "logs"))
    for name in ("HEADRACE_LOG_FORMAT", "HEADRACE_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    return make_project()


@pytest.fixture
def heard() -> Iterator[io.StringIO]:
    """What a handler of the user's own on the root logger hears; it takes whatever comes."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    root = logging.getLogger()
    root.addHandler(handler)
    yield text
    root.removeHandler(handler)


def events(update: str = "u") -> list[Any]:
    return [
        UpdateStarted(update=update, pipeline="shop", mode="triggered", flows=("orders",), views=()),
        BatchStarted(update=update, flow="orders", dataset=ORDERS, batch=3),
        BatchCommitted(
            update=update,
            flow="orders",
            dataset=ORDERS,
            batch=3,
            version=7,
            rows=10,
            duration_s=0.5,
            ranges=(),
        ),
        FlowFailed(update=update, flow="orders", dataset=ORDERS, error={"code": "FLOW_FAILED"}),
    ]


def write(settings: ProjectSettings, how: LogSettings, update: str = "u") -> str:
    with UpdateLog(settings, update, how) as log:
        for event in events(update):
            log(event)
        logging.getLogger("headrace.run.flow").warning("the ledger of flow %s was not written", "orders")
        logging.getLogger("headrace.run.flow").debug("a detail")
        logging.getLogger("py4j").error("not ours")
    return update_log(settings, update).read_text()


def test_a_line_for_each_event_and_for_what_headrace_says(settings: ProjectSettings) -> None:
    lines = write(settings, LogSettings()).splitlines()
    assert [line.split()[1:4] for line in lines] == [
        ["INFO", "headrace.run", "UpdateStarted"],
        ["INFO", "headrace.run", "BatchCommitted"],
        ["ERROR", "headrace.run", "FlowFailed"],
        ["WARNING", "headrace.run.flow", "the"],
    ]
    assert {"flow=orders", "dataset=default.orders", "batch=3", "version=7", "rows=10"} <= set(
        lines[1].split()
    )


def test_json_lines_have_one_shape(settings: ProjectSettings) -> None:
    lines = [json.loads(line) for line in write(settings, LogSettings("json", "debug")).splitlines()]
    assert {tuple(line) for line in lines} == {("at", "level", "logger", "event", "update", "flow", "fields")}
    assert [line["event"] for line in lines][1:3] == ["BatchStarted", "BatchCommitted"]
    assert {line["update"] for line in lines} == {"u"}
    assert lines[2]["flow"] == "orders"
    assert lines[2]["fields"]["rows"] == 10
    assert lines[-1] | {"at": ""} == {
        "at": "",
        "level": "debug",
        "logger": "headrace.run.flow",
        "event": "a detail",
        "update": "u",
        "flow": None,
        "fields": {},
    }


def test_the_level_is_the_least_that_is_kept(settings: ProjectSettings) -> None:
    assert [line.split()[1] for line in write(settings, LogSettings(level="error")).splitlines()] == ["ERROR"]


def test_what_breaks_an_update_off_is_logged_with_its_trace(settings: ProjectSettings) -> None:
    with pytest.raises(ZeroDivisionError), UpdateLog(settings, "u", LogSettings("json")):
        1 / 0  # noqa: B018
    line = json.loads(update_log(settings, "u").read_text())
    assert line["level"] == "error"
    assert "ZeroDivisionError" in line["trace"]


def test_the_logging_of_the_process_hears_what_it_would_hear_without(
    settings: ProjectSettings, heard: io.StringIO
) -> None:
    ours, root = logging.getLogger("headrace"), logging.getLogger()
    before = (ours.level, ours.propagate, list(ours.handlers), root.level, list(root.handlers))
    write(settings, LogSettings(level="debug"))
    assert heard.getvalue().splitlines() == ["the ledger of flow orders was not written", "not ours"]
    with UpdateLog(settings, "a", LogSettings()), UpdateLog(settings, "b", LogSettings(level="debug")):
        logging.getLogger("headrace.x").info("in both")
    assert all("in both" in update_log(settings, one).read_text() for one in "ab")
    assert (ours.level, ours.propagate, list(ours.handlers), root.level, list(root.handlers)) == before


def test_the_logs_of_one_pipeline_are_in_one_place(settings: ProjectSettings, tmp_path: Path) -> None:
    write(settings, LogSettings(), "20260101T000000-a")
    write(settings, LogSettings(), "20260102T000000-b")
    spark_log(settings, "20260103T000000-c").touch()
    assert newest_log(settings) == update_log(settings, "20260102T000000-b")
    assert log_folder(settings).parent == tmp_path / "logs"


def test_a_log_is_rotated_by_size(settings: ProjectSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_BYTES", 2000)
    with UpdateLog(settings, "u", LogSettings()) as log:
        for _ in range(200):
            log(events()[0])
    sizes = sorted(file.stat().st_size for file in log_folder(settings).iterdir())
    assert len(sizes) == 5
    assert sizes[-1] <= 2000


def test_old_logs_are_removed_and_those_of_running_updates_kept(
    settings: ProjectSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_KEPT", 3)
    with UpdateLog(settings, "1", LogSettings()):
        for number in range(2, 8):
            write(settings, LogSettings(), str(number))
            spark_log(settings, str(number)).touch()
        left = {file.name.split(".")[0] for file in log_folder(settings).iterdir()}
        assert left == {"1", "5", "6", "7"}
    assert not spark_log(settings, "2").exists()


def test_a_place_that_cannot_be_written_stops_nothing(
    settings: ProjectSettings, tmp_path: Path, heard: io.StringIO
) -> None:
    (tmp_path / "logs").write_text("a file")
    with UpdateLog(settings, "u", LogSettings()) as log:
        log(events()[0])
    assert "the log of this update cannot be written" in heard.getvalue()


def test_the_environment_says_how_to_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LOG_FORMAT", "JSON")
    monkeypatch.setenv("HEADRACE_LOG_LEVEL", "debug")
    assert LogSettings.of() == LogSettings("json", "debug")
    assert LogSettings.of("text", "error") == LogSettings("text", "error")
    monkeypatch.setenv("HEADRACE_LOG_LEVEL", "debugg")
    with pytest.raises(LogSettingInvalidError) as raised:
        LogSettings.of()
    assert raised.value.remedies == ("did you mean HEADRACE_LOG_LEVEL=debug?",)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_gets_into_a_log(settings: ProjectSettings, form: LogFormat) -> None:
    settings.redactor.add('hunter"2!')
    with pytest.raises(ZeroDivisionError), UpdateLog(settings, "u", LogSettings(form)) as log:
        log(
            FlowFailed(update="u", flow="orders", dataset=ORDERS, error={"summary": 'login hunter"2! failed'})
        )
        logging.getLogger("headrace.x").warning("with hunter%s", '"2!')
        raise ZeroDivisionError('hunter"2!')
    text = update_log(settings, "u").read_text()
    assert "hunter" not in text
    assert text.count("***") >= 3


def test_a_wrong_variable_is_an_error_before_a_run_looks_whether_there_is_anything_to_do(
    settings: ProjectSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_LOG_LEVEL", "debugg")
    monkeypatch.setattr(Engine, "choose_jvm", lambda *_, **__: pytest.fail("the run has begun"))
    with pytest.raises(LogSettingInvalidError):
        Pipeline(settings).run()
