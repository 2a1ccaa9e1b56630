"""Each pipeline has its own embedded broker, and names the shared one where only that has a topic."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.declare.spec import load_project
from headrace.errors import TopicNotFoundError
from headrace.model.declarations import Sink
from headrace.model.project import Reason
from headrace.project.ingest_code import build_spec
from headrace.runtime import places
from headrace.runtime.broker_record import find_in_shared
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.kind import KIND

OLD = "old+IdOf/TopicOrders00"


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the shared broker, which does not exist yet."""
    monkeypatch.delenv(places.BROKER_VARIABLE, raising=False)
    monkeypatch.setenv(places.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(places.platformdirs, "user_data_dir", lambda name: str(tmp_path / "user" / name))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "user/headrace/broker"


def write_spec(folder: Path, more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "headrace.yml").write_text(f"name: {folder.name}\n{more}")
    return folder


def hold(broker: Path, topic: str, topic_id: str) -> None:
    """The files of a broker with a topic."""
    (broker / "data" / f"{topic}-0").mkdir(parents=True)
    (broker / "data" / "meta.properties").write_text("version=1\n")
    (broker / "data" / f"{topic}-0" / "partition.metadata").write_text(
        "version: 0\ntopic_id: " + topic_id.replace("+", "-").replace("/", "_")
    )


def chosen(folder: Path, **overrides: str) -> tuple[Path, Reason]:
    settings = load_project(folder, overrides=overrides)
    assert settings.broker is not None
    assert settings.kafka.broker == settings.broker.folder
    return settings.broker.folder, settings.broker.reason


def test_two_pipelines_have_two_brokers(tmp_path: Path) -> None:
    first, second = write_spec(tmp_path / "a"), write_spec(tmp_path / "b")
    assert chosen(first) == (first / ".headrace/broker", "pipeline")
    assert chosen(second) == (second / ".headrace/broker", "pipeline")


def test_the_spec_names_a_folder_from_its_own_and_the_variable_one_from_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_spec(tmp_path / "a", "runtime: {broker: ../both}\n")
    assert chosen(folder) == (tmp_path / "both", "spec")
    monkeypatch.setenv(places.BROKER_VARIABLE, "mine")
    assert chosen(folder) == (tmp_path / "mine", "variable")


def test_outside_of_a_pipeline_there_is_the_shared_one(tmp_path: Path, shared: Path) -> None:
    found = load_project(anywhere=True).broker
    assert found is not None
    assert (found.folder, found.reason) == (shared, "outside")


def test_another_cluster_is_no_embedded_broker(tmp_path: Path) -> None:
    settings = load_project(write_spec(tmp_path / "a", "kafka: {bootstrap.servers: 'k1:9092'}\n"))
    assert settings.kafka.broker is None
    assert settings.broker is not None, "the broker commands still know it"


def test_a_topic_that_only_the_shared_broker_has_is_found_there(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "a/.headrace/broker"
    assert find_in_shared(["orders"], own) == ([], [])
    hold(shared, "orders", OLD)
    (fact,), (remedy,) = find_in_shared(["orders", "returns"], own)
    assert f"has `orders`: {shared}" in fact
    assert remedy.endswith(f"runtime: {{broker: {shared}}}")
    folder = write_spec(tmp_path / "a", remedy.rpartition(":   ")[2] + "\n")
    assert chosen(folder) == (shared, "spec"), "the remedy works as it is printed"
    for broker in (None, shared):
        assert find_in_shared(["orders"], broker) == ([], [])
    monkeypatch.setenv("HEADRACE_BROKER_DIR", str(own))
    assert find_in_shared(["orders"], own) == ([], []), "the user has chosen a broker: the spec has no effect"


def test_a_sink_whose_topic_only_the_shared_broker_has_is_refused_with_the_line_that_names_it(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checkpoint has the topic of a sink: a broker of its own would get the rows, and no reader."""
    hold(shared, "out", OLD)
    settings = load_project(write_spec(tmp_path / "a"))
    monkeypatch.setattr(KafkaCluster, "_described", lambda _, names: dict.fromkeys(names))
    monkeypatch.setattr(KafkaCluster, "topics", lambda _: [])
    clusters = SimpleNamespace(reach=lambda _: KafkaCluster(settings.kafka, 1))
    systems: Any = SimpleNamespace(client=lambda _: clusters)
    with pytest.raises(TopicNotFoundError) as caught:
        KIND.check_destination(Sink(format="kafka", options={"topic": "out"}), settings, systems)
    assert caught.value.remedies[0].endswith(f"runtime: {{broker: {shared}}}")
    folder = write_spec(tmp_path / "a", caught.value.remedies[0].rpartition(":   ")[2] + "\n")
    assert chosen(folder) == (shared, "spec")


def test_the_spec_of_ingested_topics_names_the_broker_that_has_them(tmp_path: Path, shared: Path) -> None:
    for folder, written in ((write_spec(tmp_path / "a"), '"../../.headrace/broker"'), (None, f'"{shared}"')):
        settings = load_project(folder, anywhere=True)
        text = build_spec(tmp_path / "a/lake/ingest", "a", "..", "default", settings.kafka, {})
        assert f"  broker: {written}\n" in text
