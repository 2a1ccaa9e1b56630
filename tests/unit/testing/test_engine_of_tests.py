"""Which engine a test of a pipeline uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.declare.spec import load_project
from headrace.project.engine import Engine
from headrace.runtime import session
from headrace.runtime.engine.record import choose_engine
from headrace.testing import pipeline_run

SPEC = """
name: shop
kafka: {bootstrap.servers: "127.0.0.1:9", sasl.password: hunter22}
configuration: {spark.hadoop.fs.s3a.secret.key: hunter23, spark.sql.shuffle.partitions: "3"}
"""


class Opened(Exception):
    """Spark would start now."""


def test_a_test_uses_the_engine_of_the_commands_of_its_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "on")
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "headrace.yml").write_text(SPEC)
    settings = load_project(tmp_path)
    keys = []

    def open_spark(name: str, **given: Any) -> None:
        choice = choose_engine(given["conf"], given["master"], given["memory"], given.get("redactor"))
        assert choice is not None
        assert choice.secrets
        keys.append(choice.key)
        raise Opened

    monkeypatch.setattr(session, "open_spark", open_spark)
    monkeypatch.setattr(pipeline_run, "open_spark", open_spark)
    with pytest.raises(Opened):
        Engine(settings).opened()
    with pytest.raises(Opened):
        pipeline_run._opened(settings, print)
    assert keys[0] == keys[1]
