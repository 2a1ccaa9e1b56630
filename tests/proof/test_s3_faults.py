"""Faults of an object store: lost answers, throttling, a bucket that is away, credentials that expire.

Nothing is lost and nothing is doubled, and a continuous run goes on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from headrace.model.event_forms import Event
from headrace.model.events import BatchCommitted
from headrace.run import attempts
from headrace.runtime.engine.client import find_engines, stop_engines
from object_server import SECRET, ObjectServer, assert_nowhere
from proof.driver import start
from proof.lakes import BucketLake
from proof.shop import BRONZE, SILVER, Shop, rows
from proof.test_two_drivers import KEYED, check
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

_LOST = (
    r"tables/.*/bronze/_delta_log/\d+\.json$",
    r"tables/.*/newest/_delta_log/\d+\.json$",
    r"tables/.*/history/.*\.parquet$",
    r"/offsets/\d+$",
    r"/commits/\d+$",
    r"/ledger/",
    r"/leases/[^/]+\.json$",
    r"/events/",
)
"""The writes of a run whose answers are lost, one after another."""


@pytest.fixture
def lake_kind() -> str:
    return "s3"


@pytest.fixture
def bucket(shop: Shop) -> BucketLake:
    assert isinstance(shop.lake, BucketLake)
    return shop.lake


@pytest.mark.thorough
def test_writes_whose_answers_are_lost_lose_and_double_nothing(shop: Shop, bucket: BucketLake) -> None:
    shop.write(BRONZE, SILVER, KEYED)
    shop.produce(20)
    shop.run_well()
    hits = {}
    for pattern in _LOST:
        shop.produce(10)
        with bucket.proxy.fault("drop", "PUT", pattern) as lost:
            shop.run_well()
        hits[pattern] = lost.hits
        check(shop)
    assert hits == dict.fromkeys(_LOST, 1)


def test_a_commit_that_arrives_after_its_driver_died_and_another_has_run_is_refused(
    shop: Shop, bucket: BucketLake
) -> None:
    shop.produce(30)
    shop.run_well()
    shop.produce(30)
    late = shop.table("bronze") / "_delta_log" / f"{shop.versions()['bronze'] + 1:020d}.json"
    key = str(late).removeprefix("s3://")
    with bucket.writing(late) as wait:
        with start(shop) as driver:
            wait()
            driver.kill("both")
            driver.wait_until_gone()
        shop.produce(10)
        shop.run_well()
        shop.check()
        assert late.exists()
    until(
        lambda: 412 in [one.status for one in bucket.proxy.requests if one.path == key],
        "the late commit ends",
    )
    shop.check()
    shop.produce(10)
    shop.run_well()
    shop.check()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("status", "seconds"),
    [
        pytest.param(503, 60.0, id="throttling"),
        pytest.param(503, 8.0, id="short throttling"),
        pytest.param(404, 8.0, id="no bucket"),
    ],
)
def test_a_store_that_is_away_ends_no_continuous_run(
    shop: Shop, bucket: BucketLake, monkeypatch: pytest.MonkeyPatch, status: int, seconds: float
) -> None:
    monkeypatch.setattr(attempts, "_FIRST_WAIT_S", 0.5)
    shop.write(BRONZE, SILVER, KEYED)
    shop.produce(20)
    with shop.running():
        await_batch(shop, "history", 0)
        with bucket.proxy.fault("error", "", "", status=status, times=1_000_000) as fault:
            shop.produce(20)
            began = time.monotonic()
            until(lambda: time.monotonic() - began > seconds, "the time of the fault ends", seconds + 5)
            assert fault.hits > 0
        since = len(shop.events)
        shop.produce(20)
        for flow in ("bronze", "silver", "history"):
            await_batch(shop, flow, since)
    shop.run_well()
    check(shop)


@pytest.mark.thorough
def test_no_secret_is_in_the_bucket_in_records_of_the_engine_in_logs_or_in_command_lines(
    shop: Shop, bucket: BucketLake, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "on")
    shop.produce(10)
    try:
        for verb in (("run", "--log-level", "debug"), ("plan", "--debug"), ("plan",), ("status", "--json")):
            with start(shop, verb=verb) as driver:
                assert driver.end() == 0, driver.said()
        assert [one["commands"] for one in find_engines()] == [3], "the engine stays for the next command"
        engines = [Path(os.environ[name]) for name in ("HEADRACE_ENGINE_DIR", "HEADRACE_LOGS")]
        assert any(engines[0].iterdir()), "no engine runs"
        name = str(bucket.root).split("/")[2]
        assert_nowhere(SECRET, object_server, name, shop.root, *engines)
    finally:
        stop_engines()


_LIFE_S = 45
_CREDENTIALS = """
import json, sys, time
from datetime import UTC, datetime
end = int(time.time()) + {life}
print(json.dumps({{
    "Version": 1, "AccessKeyId": f"key-{{end}}", "SecretAccessKey": f"pl4nted-{{end}}",
    "SessionToken": f"pl4nted-token-{{end}}", "Expiration": datetime.fromtimestamp(end, UTC).isoformat(),
}}))
"""


@pytest.mark.thorough
def test_credentials_that_expire_are_renewed_in_a_continuous_run(
    shop: Shop, bucket: BucketLake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, config = tmp_path / "credentials.py", tmp_path / "config"
    program.write_text(_CREDENTIALS.format(life=_LIFE_S))
    config.write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    bucket.proxy.accepts = lambda key: int(key.rpartition("-")[2]) > time.time()
    shop.write(BRONZE, SILVER, KEYED)
    ends = time.monotonic() + 3 * _LIFE_S
    with start(shop, "--continuous") as driver:
        while time.monotonic() < ends:
            shop.produce(10)
            until(lambda: silver(shop) == len(shop.ledger.records), "silver has all records")
            assert driver.process.poll() is None, driver.said()
        driver.process.send_signal(signal.SIGTERM)
        assert driver.end() == 143, driver.said()
    assert "pl4nted" not in driver.said()
    # The views, which a continuous run refreshes less often.
    with start(shop) as driver:
        assert driver.end() == 0, driver.said()
    check(shop)


def silver(shop: Shop) -> int:
    """The number of rows of silver, one for each record."""
    return len(rows(shop, f"tables/{shop.database}/silver")) if shop.versions().get("silver", -1) >= 0 else 0


def await_batch(shop: Shop, flow: str, since: int) -> None:
    def happened() -> bool:
        events: list[Event] = list(shop.events)[since:]
        return any(isinstance(one, BatchCommitted) and one.flow == flow for one in events)

    until(happened, f"a batch of {flow}", 120)
