"""Each pipeline has its own embedded broker, and finds the one whose records it has read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.declare.broker_choice import guess_broker
from headrace.declare.spec import load_project
from headrace.errors import TopicNotFoundError
from headrace.model.broker import Reason
from headrace.model.declarations import Sink
from headrace.project.ingest_code import build_spec
from headrace.runtime import places
from headrace.runtime.broker_record import find_in_shared
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.kind import KIND
from headrace.state.identity import CheckpointIdentity, SourceIdentity, load_identity, write_checkpoint
from headrace.storage.layout import Storage, TableName
from headrace.storage.location import Location

OLD, NEW = "old+IdOf/TopicOrders00", "new+IdOf/TopicOrders00"


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


def read(storage: Path, topic: str, topic_id: str, generation: int = 1) -> None:
    """The checkpoint of a flow that has read the topic."""
    identity = CheckpointIdentity(
        pipeline="shop",
        flow="orders",
        dataset="default.orders",
        generation=generation,
        table_id="t",
        sources=(SourceIdentity(index=0, kind="kafka", identity={"topics": {topic: topic_id}}),),
    )
    checkpoint = Storage.at(storage).checkpoint(TableName("default", "orders"), "orders", generation)
    write_checkpoint(checkpoint, identity, {})


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


def test_a_pipeline_that_has_read_topics_of_the_shared_broker_goes_on_with_it(
    tmp_path: Path, shared: Path
) -> None:
    folder = write_spec(tmp_path / "a")
    hold(shared, "orders", OLD)
    assert chosen(folder)[1] == "pipeline", "it has read nothing yet"
    read(folder / "lake", "orders", OLD)
    assert chosen(folder) == (shared, "earlier")
    assert chosen(folder, storage=str(tmp_path / "other"))[1] == "earlier", "the same topics, other tables"
    hold(folder / ".headrace/broker", "orders", NEW)
    assert chosen(folder)[1] == "earlier", "a broker beside the spec that it has not read from"
    read(folder / "lake", "orders", NEW, 2)
    assert chosen(folder)[1] == "pipeline", "it has a checkpoint on topics of its own broker"


def test_the_checkpoints_are_read_once_until_there_is_a_new_one(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_spec(tmp_path / "a")
    hold(shared, "orders", OLD)
    read(folder / "lake", "orders", OLD)
    loaded: list[str] = []

    def load(checkpoint: Location) -> CheckpointIdentity:
        loaded.append(checkpoint.name)
        return load_identity(checkpoint)

    monkeypatch.setattr("headrace.declare.broker_choice.load_identity", load)
    assert [chosen(folder) for _ in range(3)] == [(shared, "earlier")] * 3
    assert loaded == ["0001"]
    read(folder / "lake", "orders", OLD, 2)
    hold(folder / ".headrace/broker", "orders", NEW)
    assert [chosen(folder) for _ in range(2)] == [(shared, "earlier")] * 2
    assert loaded == ["0001", "0001", "0002"]


def test_a_pipeline_with_topics_of_another_broker_does_not_take_the_shared_one(
    tmp_path: Path, shared: Path
) -> None:
    folder = write_spec(tmp_path / "a")
    hold(shared, "orders", OLD)
    read(folder / "lake", "orders", NEW)
    assert chosen(folder)[1] == "pipeline"
    (folder / "lake/checkpoints/default.orders/orders/0001/headrace.json").write_text("{")
    assert chosen(folder)[1] == "pipeline", "a damaged checkpoint is reported by the command that needs it"


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


@pytest.mark.parametrize(
    ("text", "broker"),
    [
        ("name: [\n", ".headrace/broker"),
        ("name: [\nruntime:\n  broker: ../both  # mine\n", "../both"),
        ("nmae: a\nruntime: {memory: 2g, broker: data}\n", "data"),
        ("name: [\nruntime: {broker: '${FOLDER}'}\n", None),
        ("name: [\nruntime: {broker: a}\nprofiles: {b: {runtime: {broker: b}}}\n", None),
    ],
)
def test_a_broken_spec_still_tells_where_its_broker_is(tmp_path: Path, text: str, broker: str | None) -> None:
    spec = tmp_path / "a" / "headrace.yml"
    spec.parent.mkdir()
    spec.write_text(text)
    found = guess_broker(spec)
    assert (found and found.folder) == (broker and (tmp_path / "a" / broker).resolve())


def test_a_broken_file_of_a_bundle_has_the_broker_of_the_bundles_folder(tmp_path: Path) -> None:
    (tmp_path / "databricks.yml").write_text("bundle: {name: shop}\ninclude: [resources/*.yml]\n")
    spec = tmp_path / "resources" / "shop.pipeline.yml"
    spec.parent.mkdir()
    spec.write_text("resources:\n  pipelines: [\n")
    found = guess_broker(spec)
    assert found is not None and found.folder == tmp_path / ".headrace/broker"


def test_a_broken_spec_with_the_shared_broker_beside_it_is_not_guessed(tmp_path: Path, shared: Path) -> None:
    folder = write_spec(tmp_path / "a", "nmae: a\n")
    hold(shared, "orders", OLD)
    assert guess_broker(folder / "headrace.yml") is None
    hold(folder / ".headrace/broker", "orders", NEW)
    assert guess_broker(folder / "headrace.yml") is not None


def test_the_spec_of_ingested_topics_names_the_broker_that_has_them(tmp_path: Path, shared: Path) -> None:
    for folder, written in ((write_spec(tmp_path / "a"), '"../../.headrace/broker"'), (None, f'"{shared}"')):
        settings = load_project(folder, anywhere=True)
        text = build_spec(tmp_path / "a/lake/ingest", "a", "..", "default", settings.kafka, {})
        assert f"  broker: {written}\n" in text
