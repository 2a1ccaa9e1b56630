"""The embedded broker lives on, keeps what it holds, and says why it cannot start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.cli.main import run
from headrace.errors import (
    BrokerPortInUseError,
    BrokerRunningError,
    BrokerStartError,
    BrokerUnreachableError,
    TopicExistsError,
    UsageError,
)
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.project import ProjectSettings
from headrace.runtime.broker import Broker, ensure_embedded, resolve_embedded
from headrace.runtime.broker_record import topic_ids
from headrace.runtime.doctor import run_checks
from waiting import DEADLINE_S

MakeBroker = Callable[[], Broker]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own, stopped whatever happens."""
    broker = Broker(tmp_path / "own", bound=True)
    yield broker
    broker.stop()


def produce(bootstrap: str, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str, count: int, *, attempts: int = 30, **settings: str) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": "false", **settings}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    # An empty answer is the end of the topic, or of a wait for the broker.
    while len(found) < count and attempts > 0:
        message = consumer.poll(1.0)
        attempts -= message is None
        if message is not None and message.error() is None:
            found.append((message.value() or b"").decode())
    consumer.close()
    return found


def test_a_restart_keeps_records_topics_and_port(own: Broker) -> None:
    first = own.start()
    own.create_topic("sales", 1)
    produce(first, "sales", ["a", "b"])
    topics = own.list_topics()
    assert [(topic.name, topic.partitions, topic.records) for topic in topics] == [("sales", 1, 2)]
    assert topic_ids(own.directory) == {"sales": topics[0].id}
    assert own.stop()
    assert not own.status().running
    assert own.start() == first
    assert own.list_topics() == topics
    assert consume(first, "sales", 2) == ["a", "b"]
    with pytest.raises(BrokerRunningError) as caught:
        Broker(own.directory, port=9092).start()
    assert caught.value.params == {"bootstrap_servers": first, "port": 9092}
    assert Broker(own.directory, port=int(first.rpartition(":")[2])).start() == first


def test_records_survive_a_killed_broker(own: Broker) -> None:
    bootstrap = own.start()
    own.create_topic("sales", 1)
    produce(bootstrap, "sales", ["a", "b", "c"])
    pid = own.status().pid
    assert pid is not None
    killed = psutil.Process(pid)
    killed.kill()
    psutil.wait_procs([killed], timeout=DEADLINE_S)
    assert own.status().state == "stopped"
    assert own.start() == bootstrap
    assert consume(bootstrap, "sales", 3) == ["a", "b", "c"]


def test_it_lives_on_after_its_starter_and_a_second_start_finds_it(own: Broker) -> None:
    code = (
        "import sys; from pathlib import Path; from headrace.runtime.broker import Broker;"
        " print(Broker(Path(sys.argv[1])).start())"
    )
    command = [sys.executable, "-c", code, str(own.directory)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {process.communicate(timeout=DEADLINE_S)[0].strip() for process in both}
    assert answers == {own.status().bootstrap}
    assert own.status().running
    assert own.start() in answers


def test_a_copied_or_moved_folder_has_a_broker_of_its_own(own: Broker, tmp_path: Path) -> None:
    first = own.start()
    own.create_topic("sales", 1)
    produce(first, "sales", ["a"])
    copied = Broker(Path(shutil.copytree(own.directory, tmp_path / "copied")), bound=True)
    assert (copied.status().state, copied.stop()) == ("stopped", False)
    second = copied.start()
    try:
        assert second != first
        produce(second, "sales", ["b"])
        assert consume(second, "sales", 2) == ["a", "b"]
        assert consume(first, "sales", 2, attempts=1) == ["a"]
    finally:
        copied.stop()
    old = own.status().pid
    assert old is not None
    moved = Broker(own.directory.rename(tmp_path / "moved"), bound=True)
    assert moved.status().state == "stopped"
    third = moved.start()
    try:
        assert not psutil.pid_exists(old) or psutil.Process(old).status() == psutil.STATUS_ZOMBIE
        assert consume(third, "sales", 1) == ["a"]
    finally:
        moved.stop()


def test_status_without_a_broker_starts_nothing(own: Broker) -> None:
    assert own.status().state == "stopped"
    assert not own.directory.exists()
    assert not own.stop()
    with pytest.raises(BrokerUnreachableError):
        own.list_topics()


def test_a_stale_state_file_of_another_process_is_not_believed(own: Broker) -> None:
    own.directory.mkdir(parents=True)
    state = {"pid": os.getpid(), "started": 1.0, "bootstrap": "127.0.0.1:9"}
    (own.directory / "broker.json").write_text(json.dumps(state))
    assert own.status().state == "stopped"
    assert not own.stop()
    assert own.start() != "127.0.0.1:9"


def test_a_port_that_another_program_has_taken_is_changed_where_it_was_our_choice(own: Broker) -> None:
    first = own.start()
    own.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(first.rsplit(":", 1)[1])))
        other.listen()
        assert own.start() != first
        assert own.status().running


def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(BrokerPortInUseError) as caught:
            Broker(tmp_path / "own", port=port).start()
    assert caught.value.params == {"port": port}


def test_a_broker_that_cannot_start_shows_the_end_of_its_log(own: Broker) -> None:
    own.data.mkdir(parents=True)
    (own.data / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=7\n")
    with pytest.raises(BrokerStartError) as caught:
        own.start()
    assert caught.value.params["log"] == str(own.log_file)
    assert any("node" in fact for fact in caught.value.facts)
    assert own.status().state == "stopped"


def test_topics_refuse_a_second_creation_and_a_wrong_name(broker: Broker, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    with pytest.raises(TopicExistsError) as caught:
        broker.create_topic(name, 3)
    assert caught.value.params == {"topic": name}
    with pytest.raises(UsageError):
        broker.create_topic("no spaces")


def test_a_topic_is_deleted_after_a_yes(
    topic: Callable[..., str], bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(partitions=2)
    produce(bootstrap, name, ["a", "b"])
    assert run(["broker", "topics", "delete", name, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "NOT_CONFIRMED"
    assert run(["broker", "topics", "delete", name, "--yes"]) == 0
    assert capsys.readouterr().out == f"Deleted topic {name} with 2 partitions and 2 records.\n"
    assert run(["broker", "topics", "delete", name, "--yes", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "TOPIC_NOT_FOUND"


def test_transactions_work_on_one_node(bootstrap: str, topic: Callable[..., str]) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    for value, keep in (("kept", True), ("aborted", False), ("last", True)):
        producer.begin_transaction()
        producer.produce(name, value.encode(), partition=0)
        if keep:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)
    assert consume(bootstrap, name, 2, **{"isolation.level": "read_committed"}) == ["kept", "last"]


def test_embedded_means_this_broker(broker: Broker, bootstrap: str, tmp_path: Path) -> None:
    embedded = KafkaConnection({"bootstrap.servers": "embedded"})
    assert ensure_embedded(embedded).bootstrap_servers == bootstrap
    found = resolve_embedded(embedded)
    assert found is not None
    assert found.bootstrap_servers == bootstrap
    assert resolve_embedded(replace(embedded, broker=tmp_path / "none")) is None
    elsewhere = KafkaConnection({"bootstrap.servers": "kafka.test:9092"})
    assert ensure_embedded(elsewhere) is elsewhere


def test_the_doctor_asks_a_cluster_that_is_not_ours(
    bootstrap: str, topic: Callable[..., str], make_project: Callable[..., ProjectSettings]
) -> None:
    topic()
    (found,) = (check for check in run_checks(make_project(bootstrap)) if check.name == "kafka")
    assert found.state == "ok"
    assert f"{bootstrap}: brokers: 1, topics: " in found.text
