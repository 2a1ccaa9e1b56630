"""`headrace produce` and `consume`, on a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headrace.cli.main import run
from headrace.model.kafka_settings import KafkaConnection
from headrace.sources.kafka.cluster import KafkaCluster
from waiting import DEADLINE_S, until

TopicFactory = Callable[..., str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bootstrap: str) -> None:
    """No pipeline is around: the embedded broker is meant."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[Any]]]:
    """Call the command line for its JSON lines."""

    def call(*arguments: str) -> tuple[int, list[Any]]:
        capsys.readouterr()
        code = run([*arguments, "--json"])
        out = capsys.readouterr().out
        try:
            return code, [json.loads(out)]
        except ValueError:
            return code, [json.loads(line) for line in out.splitlines()]

    return call


Call = Callable[..., tuple[int, list[Any]]]


def test_a_file_comes_out_as_it_went_in(call: Call, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(3)
    rows = [{"id": number, "customer": f"c{number % 5}", "amount": 0.1 * number} for number in range(200)]
    (tmp_path / "e.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    code, [made] = call("produce", name, "--file", "e.jsonl", "--key", "customer")
    assert (code, made["records"], made["skipped"], made["created"]) == (0, 200, 199, False)
    assert sum(one["last"] - one["first"] + 1 for one in made["partitions"]) == 200

    code, records = call("consume", name)
    assert code == 0
    assert sorted((record["value"] for record in records), key=lambda row: row["id"]) == rows
    assert all(record["key"] == record["value"]["customer"] for record in records)
    by_customer = {record["key"]: set() for record in records}  # type: ignore[var-annotated]
    for record in records:
        by_customer[record["key"]].add(record["partition"])
    assert all(len(partitions) == 1 for partitions in by_customer.values()), "a key is in one partition"


def test_no_consumer_group_is_left_behind(call: Call, topic: TopicFactory, bootstrap: str) -> None:
    name = topic()
    call("produce", name, "--sample", "--limit", "5")
    assert len(call("consume", name, "--from", "-1h")[1]) == 5
    admin = AdminClient({"bootstrap.servers": bootstrap})
    groups = {group.group_id for group in admin.list_consumer_groups().result().valid}
    assert not {group for group in groups if "consume" in group}


def test_where_to_begin(call: Call, topic: TopicFactory, bootstrap: str) -> None:
    name = topic(2)
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in (0, 1):
        for number in range(5):
            producer.produce(
                name, str(number), partition=partition, timestamp=1_700_000_000_000 + number * 60_000
            )
    assert producer.flush(30) == 0

    def places(*arguments: str) -> list[tuple[int, int]]:
        return sorted((one["partition"], one["offset"]) for one in call("consume", name, *arguments)[1])

    assert len(places()) == 10
    assert places("--from", "4") == [(0, 4), (1, 4)]
    assert places("--partition", "1", "--from", "3") == [(1, 3), (1, 4)]
    assert places("--from", "2023-11-14T22:16:20") == [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert places("--partition", "0", "--limit", "2") == [(0, 0), (0, 1)]
    for nothing in ("latest", "5", "-10m"):
        assert places("--from", nothing) == []
    for wrong in (["--from", "6"], ["--partition", "2"]):
        code, [answer] = call("consume", name, *wrong)
        assert (code, answer["error"]["code"]) == (2, "OFFSET_UNKNOWN")


def test_aborted_records_are_not_shown(call: Call, topic: TopicFactory, bootstrap: str) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"t-{name}"})
    producer.init_transactions(30)
    for value, keep in (("kept", True), ("aborted", False)):
        producer.begin_transaction()
        producer.produce(name, value)
        assert producer.flush(30) == 0, "what has not been sent cannot be aborted"
        (producer.commit_transaction if keep else producer.abort_transaction)(30)
    cluster = KafkaCluster(KafkaConnection({"bootstrap.servers": bootstrap}))
    until(lambda: cluster.latest([name])[name] == {0: 4}, "two records and two markers are settled")
    assert [record["value"] for record in call("consume", name)[1]] == ["kept"]


def test_what_is_no_text(
    call: Call, topic: TopicFactory, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in (b"\xff\x00", b"\x1b[2Jgone", b'{\n "a": 1.10\n}', None):
        producer.produce(name, value=value, key=b"k", headers=[("h", b"\xfe")])
    assert producer.flush(30) == 0
    assert [record["value"] for record in call("consume", name)[1]] == [
        "0xff00",
        "\x1b[2Jgone",
        {"a": 1.1},
        None,
    ]
    assert call("consume", name, "--limit", "1")[1][0]["headers"] == [["h", "0xfe"]]
    assert run(["consume", name]) == 0
    shown = [line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines()]
    assert shown == ["0xff00", "\\x1b[2Jgone", '{ "a": 1.10 }', "null"]


def test_a_line_that_is_wrong_says_what_is_there_already(
    call: Call, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic()
    (tmp_path / "e.jsonl").write_text('{"id": 1}\n{"id": 2}\n{"id": 3\n{"id": 4}\n')
    code, [answer] = call("produce", name, "--file", "e.jsonl")
    error = answer["error"]
    assert (code, error["code"], error["params"]["delivered"]) == (2, "RECORD_INVALID", 2)
    assert error["location"] == {"path": "e.jsonl", "line": 3, "column": 9}
    assert [record["value"] for record in call("consume", name)[1]] == [{"id": 1}, {"id": 2}]
    (tmp_path / "e.csv").write_text("id,name\n3,c\n4\n5,e\n")
    cut, repeat = call("produce", name, "--file", "e.csv")[1][0]["error"]["remedies"]
    (tmp_path / "e.csv").write_text("id,name\n3,c\n4,d\n5,e\n")
    subprocess.run(cut.partition(":   ")[2], shell=True, check=True, cwd=tmp_path)
    call("produce", name, *repeat.partition(" with ")[2].split())
    assert [record["value"]["id"] for record in call("consume", name)[1]] == [1, 2, 3, 4, 5]


def test_a_record_that_the_topic_does_not_take_is_named(
    call: Call, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(**{"max.message.bytes": "2000"})
    (tmp_path / "e.txt").write_text("first\n" + "x" * 5000 + "\nlast\n")
    code, [answer] = call("produce", name, "--file", "e.txt", "--format", "text")
    error = answer["error"]
    assert (code, error["code"]) == (1, "PRODUCE_FAILED")
    assert "e.txt:2" in error["summary"]
    there = [record["value"] for record in call("consume", name)[1]]
    assert error["params"]["delivered"] == len(there)
    assert error["params"]["failed"] == 1


def test_a_missing_topic_is_made_here_and_refused_elsewhere(
    call: Call, topic: TopicFactory, bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic()
    assert run(["produce", f"{name}x", "--sample", "--limit", "3"]) == 0
    said = capsys.readouterr()
    assert f"Created topic {name}x with 1 partition" in said.err
    assert f"did you mean `{name}`?" in said.err
    assert said.out.startswith("3 records · ")

    (tmp_path / "headrace.yml").write_text(f"name: shop\nkafka: {{bootstrap.servers: '{bootstrap}'}}\n")
    for verb in (["produce", f"{name}y", "--sample"], ["consume", f"{name}y"]):
        code, [answer] = call(*verb)
        assert (code, answer["error"]["code"]) == (2, "TOPIC_NOT_FOUND")
        assert "did you mean" in answer["error"]["remedies"][0]


def test_samples_go_on_where_the_topic_ends(call: Call, topic: TopicFactory) -> None:
    name = topic()
    for _ in range(2):
        assert (
            call("produce", name, "--sample", "--schema", "id LONG, customer STRING", "--limit", "10")[0] == 0
        )
    assert [record["value"]["id"] for record in call("consume", name)[1]] == list(range(1, 21))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--sample", "--file", "-"),
        ("--file", "-", "--schema", "id LONG"),
        ("--sample", "--format", "csv"),
        ("--file", "-", "--format", "text", "--key", "id"),
        ("--file", "nowhere.jsonl"),
        ("--sample", "--rate", "0"),
    ],
)
def test_a_command_line_that_means_nothing(call: Call, arguments: tuple[str, ...]) -> None:
    code, [answer] = call("produce", "any", *arguments)
    assert (code, answer["error"]["code"]) == (2, "COMMAND_LINE")


def test_a_signal_ends_it_with_the_count_of_what_was_delivered(topic: TopicFactory, call: Call) -> None:
    """Following, producing for ever, and waiting for input: each ends by Ctrl-C, and at once."""
    name = topic()
    # A shell's background job starts with SIGINT ignored, and so would these.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = [sys.executable, "-c", f"{heard}; from headrace.cli.main import main; main()"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    sampling = ["--sample", "--rate", "200", "--json"]
    seen: list[str] = []
    with (
        subprocess.Popen([*program, "consume", name, "--follow", "--json"], **pipes) as reader,
        subprocess.Popen([*program, "produce", name, *sampling], **pipes) as sampler,
        subprocess.Popen(
            [*program, "produce", name, "--file", "-", "--json"], stdin=subprocess.PIPE, **pipes
        ) as typist,
    ):
        all_three = (reader, sampler, typist)
        try:
            threading.Thread(target=lambda: seen.extend(reader.stdout), daemon=True).start()  # type: ignore[arg-type]
            assert typist.stdin is not None
            typist.stdin.write('{"typed": 1}\n')
            typist.stdin.flush()
            until(lambda: len(seen) > 50 and any("typed" in line for line in seen), "records are followed")
            for process in (sampler, typist):
                # As a terminal does it; the standard input of the typist stays open.
                process.send_signal(signal.SIGINT)
                assert process.wait(DEADLINE_S) == 130
            counts = [
                json.loads(process.stdout.read())["records"]
                for process in (sampler, typist)
                if process.stdout
            ]
            until(lambda: len(seen) == sum(counts), "the follower has all that was delivered")
            reader.send_signal(signal.SIGINT)
            assert reader.wait(DEADLINE_S) == 130
        finally:
            for process in all_three:
                process.kill()
    assert counts[1] == 1
    assert len(call("consume", name)[1]) == sum(counts), "what was said is what is there"


def test_a_reader_that_has_seen_enough_ends_it_quietly(topic: TopicFactory, call: Call) -> None:
    name = topic()
    call("produce", name, "--sample", "--limit", "20000")
    program = [sys.executable, "-c", "from headrace.cli.main import main; main()", "consume", name]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("0/0 ")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(DEADLINE_S) == 0
