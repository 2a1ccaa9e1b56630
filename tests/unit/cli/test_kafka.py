"""The Kafka cluster that a command uses."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.cli.kafka import reach_kafka, start_broker
from headrace.cli.output import TextOutput
from headrace.cli.verb import Invocation
from headrace.errors import SpecNotFoundError, SpecUnknownKeyError


def _invocation(project: Path | None = None, **settings: str) -> Invocation:
    given = {f"kafka.{key.replace('_', '.')}": value for key, value in settings.items()}
    return Invocation(TextOutput(stdout=io.StringIO(), stderr=io.StringIO()), project=project, set=given)


def test_outside_of_a_pipeline_the_command_line_names_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PROFILE", "prod")
    kafka = reach_kafka(_invocation(bootstrap_servers="k1:9092", client_id="x"))
    assert (kafka.servers, kafka.is_embedded) == ("k1:9092", False)
    assert kafka.connection.settings["client.id"] == "x"
    with pytest.raises(SpecUnknownKeyError):
        reach_kafka(_invocation(bootstrap_serverz="k1:9092"))


def test_a_folder_that_was_named_must_be_a_pipeline(tmp_path: Path) -> None:
    with pytest.raises(SpecNotFoundError):
        reach_kafka(_invocation(tmp_path, bootstrap_servers="k1:9092"))


class _Broker:
    state = "stopped"

    def status(self) -> Any:
        return self

    def start(self) -> str:
        self.state = "running"
        return "127.0.0.1:9"


def test_a_command_tells_that_it_has_started_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runtime.fetch.ensure_jars", lambda name: None)
    broker, output = _Broker(), TextOutput(stdout=io.StringIO(), stderr=(told := io.StringIO()))
    for _ in range(2):
        assert start_broker(cast(Any, broker), output) == "127.0.0.1:9"
    assert told.getvalue() == "Started the embedded broker on 127.0.0.1:9\n"
