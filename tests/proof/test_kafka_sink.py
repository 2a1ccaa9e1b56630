"""A reader of a topic with `isolation.level=read_committed` sees each row of a sink exactly once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headrace.model.event_forms import Event
from headrace.model.events import BatchCommitted, FlowRetrying
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import FAIL_VARIABLE
from headrace.run.stop import StopSignal
from headrace.runtime.broker import Broker
from headrace.state.lease import EXPIRES_VARIABLE
from headrace.verify.report import proof_lines
from proof.driver import start
from proof.ledger import settings
from proof.replaced_driver import check_replaced_driver
from proof.served import CURRENT, POINTS, Served
from topic_reader import newest, state_topic, values
from waiting import DEADLINE_S, until

pytestmark = pytest.mark.usefixtures("spark")

LOGGED = """
import headrace as hr

hr.create_sink("log", "kafka", {"topic": "LOG"})

@hr.append_flow(target="log", name="log")
def log():
    landed = hr.read_files("landing", format="json", schema="id LONG, at LONG, op STRING, value STRING")
    return landed.selectExpr("CAST(id AS STRING) AS key", "CAST(at AS STRING) AS value")
"""
PIPELINE = f"""{LOGGED}
{CURRENT}
hr.create_sink("served", "kafka", {{"topic": "SERVED", "format": "json", "keys": "id"}})
"""
MANY = 150_000
"""Records whose transaction takes long enough to meet it."""


class Topics(Served):
    """The topics of two sinks."""

    def __init__(self, root: Path, bootstrap: str, served: str, log: str) -> None:
        super().__init__(root)
        self.bootstrap, self.served, self.log = bootstrap, served, log
        self.site.write_spec(kafka={"bootstrap.servers": bootstrap})
        self.write(PIPELINE)
        self.admin = AdminClient(settings(bootstrap))

    def write(self, code: str) -> None:
        self.site.write(code.replace("SERVED", self.served).replace("LOG", self.log))

    def check(self) -> None:
        super().check()
        self.check_log()

    def check_log(self) -> None:
        logged = [int(text or b"") for _, text in values(self.bootstrap, self.log)]
        assert sorted(logged) == sorted(one.sequence for one in self.put)

    def rows(self) -> dict[int, Any]:
        found = newest(self.bootstrap, self.served)
        parsed = {int(key or b""): json.loads(text) for key, text in found.items()}
        assert all(key == row["id"] for key, row in parsed.items())
        return {key: row["value"] for key, row in parsed.items()}

    def batches(self, topic: str) -> list[int]:
        """The numbers of the batches that a sink has recorded."""
        found = values(self.bootstrap, state_topic(self.bootstrap, topic))
        documents = [json.loads(text) for key, text in found if text and (key or b"").startswith(b"batch/")]
        return [one["batch"] for one in documents if "input" in one]

    def sent(self) -> int:
        """The end of the log, also of open and aborted transactions."""
        places = [TopicPartition(self.log, partition) for partition in range(2)]
        found = self.admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()), isolation_level=IsolationLevel.READ_UNCOMMITTED
        )
        return sum(future.result(DEADLINE_S).offset for future in found.values())


@pytest.fixture
def served(tmp_path: Path, bootstrap: str, topic: Callable[..., str]) -> Topics:
    return Topics(tmp_path / "site", bootstrap, topic(3), topic(2))


@pytest.mark.guarantee
def test_a_process_that_ends_at_any_step_loses_and_doubles_nothing(
    served: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = served.site
    served.produce()
    site.run_well()
    served.check()
    topics = {"served": served.served, "log": served.log}
    for flow, point in [(flow, point) for point in POINTS for flow in topics]:
        # The other flow completes the batch, and this one repeats it in the next run.
        served.produce()
        batch = served.batches(topics[flow])[-1] + 1
        monkeypatch.setenv(FAIL_VARIABLE, f"{flow}/{point}:{batch}")
        site.run()
        assert FAIL_VARIABLE not in os.environ, f"{flow} has come to {point}"
        site.run_well()
        served.check()
    for topic in topics.values():
        numbers = served.batches(topic)
        assert numbers == list(range(len(numbers)))
    proof = site.verify()
    sinks = {one.dataset.name: one for one in proof.datasets if one.kind == "sink"}
    assert proof.proven and {*sinks} == {"served", "log"}, proof_lines(proof)
    assert all(one.flows[0].grades[0].verdict == "proven" for one in sinks.values()), proof_lines(proof)


def test_a_process_that_is_killed_within_a_transaction_shows_none_of_its_rows(served: Topics) -> None:
    served.write(LOGGED)
    served.produce()
    served.site.run_well()
    before = served.sent()
    served.produce(MANY)
    with start(served.site) as driver:
        until(lambda: served.sent() > before or driver.process.poll() is not None, "rows are sent")
        driver.kill("python")
        driver.wait_until_gone()
    assert len(values(served.bootstrap, served.log)) == 12, "the transaction was open"
    served.produce()
    served.site.run_well()
    served.check_log()
    assert served.sent() > len(served.put), "the aborted rows are still there"


def test_a_killed_process_has_its_batch_repeated_as_a_replay(served: Topics) -> None:
    served.produce()
    with start(served.site, pause=("served/after-commit", 0)) as driver:
        driver.wait_at("after-commit")
        until(lambda: bool(served.rows()), "the rows are committed")
        driver.kill("both")
        driver.wait_until_gone()
    assert served.batches(served.served) == [0]
    served.produce()
    served.site.run_well()
    served.check()


def test_a_replaced_driver_commits_nothing(served: Topics, spark: Any) -> None:
    served.produce()
    served.site.run_well()
    before = served.rows()
    stale = spark.sql(
        "SELECT 1L id, 'stale' value, 'insert' _change_type, 99L _commit_version, now() _commit_timestamp"
    )
    check_replaced_driver(served.site, "served", stale)
    assert served.rows() == before
    served.produce()
    served.site.run_well()
    served.check()


def test_a_driver_that_wakes_within_its_transaction_commits_nothing(
    served: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.write(LOGGED)
    served.produce()
    served.site.run_well()
    before = served.sent()
    served.produce(MANY)
    with start(served.site) as driver:
        until(lambda: served.sent() > before or driver.process.poll() is not None, "rows are sent")
        os.kill(driver.process.pid, signal.SIGSTOP)
        assert len(values(served.bootstrap, served.log)) == 12, "the transaction is open"
        monkeypatch.setenv(EXPIRES_VARIABLE, "1")

        def takes_over() -> bool:
            return served.site.run().outcome == "completed"

        until(takes_over, "its leases have expired")
        served.check_log()
        os.kill(driver.process.pid, signal.SIGCONT)
        # Its producer is fenced. After that nothing is left to do, or its lease is lost.
        driver.end()
        assert "another driver has taken over" in driver.said(), driver.said()
    served.produce()
    served.site.run_well()
    served.check_log()


@pytest.mark.parametrize("commits", [True, False])
def test_a_commit_without_an_answer_counts_if_the_broker_has_it(
    served: Topics, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    served.produce()
    served.site.run_well()
    before, lost = served.sent(), []

    class Forgetful(Producer):
        """Loses the answer to its first commit of rows, or the request."""

        def commit_transaction(self, *arguments: Any) -> None:
            if lost or served.sent() <= before:
                super().commit_transaction(*arguments)
                return
            lost.append(True)
            if commits:
                super().commit_transaction(*arguments)
            else:
                self.flush()  # the state is in the log, too, and is aborted later
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer is lost"))

    monkeypatch.setattr(confluent_kafka, "Producer", Forgetful)
    served.produce()
    events: list[Event] = []
    with Pipeline.load(served.site.root) as pipeline:
        result = pipeline.run(emit=events.append)
    assert result.outcome == "completed", result.errors
    assert lost and any(isinstance(one, FlowRetrying) for one in events)
    served.check()
    assert served.batches(served.log) == [0, 1]


def test_a_broker_that_is_away_is_waited_for(served: Topics, broker: Broker) -> None:
    """The flows of the sinks try again until the broker is back, and nothing is skipped."""
    served.produce()
    served.site.run_well()
    events: list[Event] = []
    stop = StopSignal()

    def are_waiting() -> bool:
        waiting = {one.flow for one in list(events) if isinstance(one, FlowRetrying)}
        return {"served", "log"} <= waiting

    def has_all() -> bool:
        done = [one for one in list(events) if isinstance(one, BatchCommitted)]
        return {"served", "log"} <= {one.flow for one in done[known:]} or running.done()

    with Pipeline.load(served.site.root) as pipeline, ThreadPoolExecutor() as pool:
        running = pool.submit(pipeline.run, emit=events.append, continuous=True, stop=stop)
        try:
            with stopped(broker):
                served.produce()
                until(lambda: are_waiting() or running.done(), "they try again")
                known = len([one for one in list(events) if isinstance(one, BatchCommitted)])
            until(has_all, "they have sent their batches")
        finally:
            stop.request()
        running.result(DEADLINE_S)
    assert are_waiting()
    served.check()


@contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    broker.stop()
    try:
        yield
    finally:
        broker.start()


def test_a_topic_or_its_state_that_was_lost_is_refused_and_then_sent_again(served: Topics) -> None:
    served.produce()
    served.site.run_well()
    admin = served.admin
    for lost in (served.log, state_topic(served.bootstrap, served.log)):
        recreate(admin, lost, {} if lost == served.log else None)
        served.produce()
        error = served.site.error()
        assert (error.code, error.params["flow"]) == ("TABLE_LOST", "log"), error
        with Pipeline.load(served.site.root) as pipeline:
            pipeline.full_refresh(["log"])
        logged = {int(text or b"") for _, text in values(served.bootstrap, served.log)}
        assert logged == {one.sequence for one in served.put}


def recreate(admin: AdminClient, topic: str, config: dict[str, str] | None) -> None:
    """Delete a topic and, with settings, create it again."""
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    until(lambda: topic not in admin.list_topics(timeout=30).topics, "the topic is gone")
    if config is not None:
        new = NewTopic(topic, num_partitions=2, config=config)
        admin.create_topics([new])[topic].result(DEADLINE_S)


def test_verify_finds_a_batch_that_the_state_topic_has_lost(served: Topics) -> None:
    for _ in range(3):
        served.produce()
        served.site.run_well()
    assert served.site.verify().proven
    state = state_topic(served.bootstrap, served.log)
    held = values(served.bootstrap, state)
    admin = served.admin
    admin.delete_topics([state])[state].result(DEADLINE_S)
    text = "\n".join(proof_lines(served.site.verify()))
    assert f"the topic {state} has no state of it" in text, text
    until(lambda: state not in admin.list_topics(timeout=30).topics, "the topic is gone")
    new = NewTopic(state, num_partitions=1, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[state].result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": served.bootstrap})
    left = [(key, text) for key, text in held if key == b"state" or json.loads(text or b"").get("batch") != 1]
    assert len(left) == len(held) - 1
    for key, value in left:
        producer.produce(state, value, key)
    assert producer.flush(30) == 0
    proof = served.site.verify()
    assert not proof.proven, proof_lines(proof)
