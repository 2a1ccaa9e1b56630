"""Who is told of what, and how often."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.alerts import check as check_module
from headrace.alerts.check import AlertFile, load_alerts
from headrace.alerts.conditions import UNKNOWN, Facts, judge
from headrace.declare.spec import load_project
from headrace.errors import HeadraceError
from headrace.model.event_forms import Event
from headrace.model.events import AlertEnded, AlertFired
from headrace.model.names import TableName
from headrace.observe.quality import DatasetQuality, ExpectationQuality, Quality
from headrace.observe.snapshot import Snapshot
from headrace.observe.status import DatasetStatus, FlowStatus, ViewStatus
from hook_server import Hook, running_hook
from mail_server import running_mail_server

ORDERS, TOTALS = TableName("shop", "orders"), TableName("shop", "totals")


@pytest.fixture
def hook() -> Iterator[Hook]:
    with running_hook() as hook:
        yield hook


@dataclass
class Case:
    """A pipeline whose facts a test chooses, and the clock of its alerts."""

    root: Path
    patch: pytest.MonkeyPatch
    now: datetime = datetime(2026, 1, 2, 3, 0, tzinfo=UTC)
    events: list[Event] = field(default_factory=list)

    def declare(self, rules: Sequence[Mapping[str, Any]], targets: Mapping[str, Any]) -> None:
        spec = {"name": "shop", "database": "shop", "libraries": [{"file": "x.py"}]}
        text = json.dumps({**spec, "alerts": {"targets": targets, "rules": rules}})
        (self.root / "headrace.yml").write_text(text)
        self.settings = load_project(self.root)

    def check(self, after_s: float = 0, **facts: Any) -> None:
        self.now += timedelta(seconds=after_s)
        now = self.now

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return now

        self.patch.setattr(check_module, "datetime", Clock)
        AlertFile(self.settings).check(self.facts(**facts), self.events.extend, "u")

    def facts(
        self,
        state: Any = "running",
        lag: int | None = 0,
        changed_s: float = 0,
        view: Any = "up to date",
        passed: tuple[int, int] = (10, 0),
        proven: bool | None = None,
        losses: Sequence[str] = (),
        disk: tuple[int, int] | None = (50, 100),
        failure: Any = UNKNOWN,
        recovering: bool = False,
    ) -> Facts:
        error = {"code": "BAD", "summary": "bad"} if state == "failed" else None
        flow = FlowStatus(
            flow="orders", state=state, checkpoint="c", lag=lag, error=error, recovering=recovering
        )
        changed = self.now - timedelta(seconds=changed_s)
        datasets = (
            DatasetStatus(dataset=ORDERS, kind="streaming_table", changed=changed, flows=(flow,)),
            DatasetStatus(dataset=TOTALS, kind="view", changed=self.now, view=ViewStatus(state=view)),
        )
        known: Any = {"name": "positive", "dataset": "shop.orders", "action": "warn", "over_time": ()}
        one = ExpectationQuality(**known, passed=passed[0], failed=passed[1])
        quality = DatasetQuality(dataset=ORDERS, accepted=9, quarantined=0, dropped=0, expectations=(one,))
        root = self.settings.storage.root
        return Facts(
            snapshot=Snapshot(pipeline="shop", storage=root, datasets=datasets, at=self.now),
            database="shop",
            update_error=failure,
            quality=lambda over_s: Quality(pipeline="shop", datasets=(quality,)),
            losses=lambda: {"orders": [{"at": at} for at in losses]},
            proof=lambda: None if proven is None else {"proven": proven},
            disk=lambda: disk,
        )

    def fired(self) -> list[str]:
        return [one.text for one in self.events if isinstance(one, AlertFired)]

    def ended(self) -> list[str]:
        return [one.text for one in self.events if isinstance(one, AlertEnded)]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def told(hook: Hook) -> list[tuple[str, str]]:
    return [(one.row["state"], one.row["text"]) for one in hook.taken]


def test_an_alert_is_told_once_and_once_when_it_ends(case: Case, hook: Hook) -> None:
    case.declare([{"on": "lag", "above": 100}], {"ops": {"webhook": hook.url}})
    for lag in (5, 100, 101, 5000, None, 700):
        case.check(60, lag=lag)
    text = "orders is 101 records behind (limit 100)"
    assert told(hook) == [("firing", text)] and case.fired() == [text]
    case.check(60, lag=3)
    case.check(60, lag=3)
    last = "orders is 700 records behind (limit 100)"
    assert told(hook)[1:] == [("ended", last)] and case.ended() == [last]
    case.check(60, lag=200)
    assert [state for state, _ in told(hook)] == ["firing", "ended", "firing"]


def test_an_alert_survives_a_restart(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    case.check(state="failed")
    case.settings = load_project(case.root)
    case.check(15, state="failed")
    case.check(15)
    assert told(hook) == [
        ("firing", "orders has failed: [BAD] bad"),
        ("ended", "orders has failed: [BAD] bad"),
    ]
    row = hook.taken[0].row
    assert (row["pipeline"], row["alert"], row["subject"]) == ("shop", "flow_failed", "orders")
    assert row["remedy"] == "headrace status" and row["since"].startswith("2026-01-02T03:00:00")


def test_it_must_last_as_long_as_the_rule_says(case: Case, hook: Hook) -> None:
    case.declare([{"on": "lag", "above": 100, "lasting": "5 minutes"}], {"ops": {"webhook": hook.url}})
    case.check(lag=200)
    case.check(200, lag=200)
    case.check(60, lag=0)
    case.check(60, lag=200)
    case.check(299, lag=200)
    assert hook.taken == []
    case.check(1, lag=200)
    assert len(hook.taken) == 1


def test_a_target_that_is_away_is_told_later(case: Case, hook: Hook) -> None:
    targets = {"ops": {"webhook": "http://127.0.0.1:9/x"}, "pager": {"webhook": hook.url}}
    case.declare([{"on": "flow_failed"}], targets)
    case.check(state="failed")
    assert len(hook.taken) == 1
    (alert,) = load_alerts(case.settings.storage, "shop")
    assert (
        alert.told == ("pager",) and {*alert.problems} == {"ops"} and "127.0.0.1" not in str(alert.problems)
    )
    targets["ops"] = {"webhook": hook.url}
    case.declare([{"on": "flow_failed"}], targets)
    case.check(15, state="failed")
    case.check(15, state="failed")
    assert len(hook.taken) == 2 and load_alerts(case.settings.storage, "shop")[0].problems == {}


def test_a_process_that_ended_while_it_sent_does_not_silence_an_alert(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AlertFile, "_deliver", lambda *_: None)
        case.check(state="failed")
    case.check(60, state="failed")
    assert hook.taken == []  # the other process may still send it
    case.check(120, state="failed")
    assert len(hook.taken) == 1


def test_two_processes_send_one_message(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    plain = AlertFile._deliver

    def meanwhile(self: AlertFile, deliveries: list[Any]) -> None:
        patch.undo()
        facts = case.facts(state="failed")
        AlertFile(case.settings).check(facts, case.events.extend, "v")
        plain(self, deliveries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AlertFile, "_deliver", meanwhile)
        case.check(state="failed")
    assert len(hook.taken) == 1 and len(case.events) == 1


def test_every_condition(case: Case, hook: Hook) -> None:
    rules = [
        {"on": "flow_failed", "datasets": ["totals"]},
        {"on": "freshness", "above": "15 minutes", "datasets": ["orders"]},
        {"on": "expectation", "below": "90%"},
        {"on": "proof"},
        {"on": "loss"},
        {"on": "disk", "below": "10%"},
    ]
    case.declare(rules, {"ops": {"webhook": hook.url}})
    case.check(state="failed", changed_s=900, passed=(90, 10), disk=(10, 100))
    assert told(hook) == []
    at = "2026-01-02T02:00:00+00:00"
    case.check(1, view="failed", changed_s=901, passed=(89, 11), proven=False, losses=(at, at), disk=(9, 100))
    assert sorted(text for _, text in told(hook)) == [
        "`headrace verify` has found that records are missing, doubled or changed",
        "orders has not changed for 15 min (limit 15 min)",
        "orders: 89.0% of 100 rows pass the expectation `positive` (limit 90%)",
        "orders: the source has lost 2 ranges of records that were not read",
        "the disk of the storage has 9 bytes left, 9.0% (limit 10%)",
        "totals has failed",
    ]
    # On another machine, nobody has proven anything; no row came, and the loss is told.
    case.check(15, view="failed", changed_s=901, passed=(0, 0), losses=(at, at), disk=(9, 100))
    assert len(hook.taken) == 6 and case.ended() == []
    case.check(15, proven=True, passed=(10, 0))
    assert [state for state, _ in told(hook)[6:]] == ["ended"] * 5  # a loss does not end
    case.check(15, losses=(at,))
    assert load_alerts(case.settings.storage, "shop") != []


def test_an_update_that_fails_before_any_flow(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    case.check(failure={"code": "QUERY_INVALID", "summary": "no such column"})
    assert told(hook) == [("firing", "the update has failed: [QUERY_INVALID] no such column")]
    case.check(15)  # somebody else's check knows nothing of updates
    assert len(hook.taken) == 1
    case.check(15, failure=None)
    assert [state for state, _ in told(hook)] == ["firing", "ended"]


def test_an_event_log_that_cannot_be_read_ends_no_alert(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    case.check(state="failed")
    facts = case.facts()
    assert facts.snapshot is not None
    found = judge(
        case.settings.alerts.rules, replace(facts, snapshot=replace(facts.snapshot, knows_failures=False))
    )
    assert {one.is_bad for one in found} == {None}
    case.check(15)
    assert [state for state, _ in told(hook)] == ["firing", "ended"]


def test_a_lag_that_is_known_in_part_is_judged_above_the_limit_only(case: Case, hook: Hook) -> None:
    """A stream can tell a part of its records, and how far the flow is behind."""
    case.declare([{"on": "lag", "above": 100}], {"ops": {"webhook": hook.url}})
    facts = case.facts(lag=5)
    assert facts.snapshot is not None
    orders, totals = facts.snapshot.datasets
    behind = replace(orders, flows=(replace(orders.flows[0], behind_s=90.0),))
    found = judge(
        case.settings.alerts.rules,
        replace(facts, snapshot=replace(facts.snapshot, datasets=(behind, totals))),
    )
    assert [one.is_bad for one in found] == [None]


def test_rules_choose_their_targets(case: Case, hook: Hook) -> None:
    with running_hook() as other:
        targets = {"ops": {"webhook": hook.url}, "boss": {"webhook": other.url}}
        rules = [
            {"on": "lag", "above": 10, "to": ["ops"]},
            {"on": "lag", "above": 10, "lasting": "1 hour", "to": ["boss"]},
        ]
        case.declare(rules, targets)
        case.check(lag=50)
        assert (len(hook.taken), len(other.taken)) == (1, 0)
        case.check(3600, lag=50)
        assert (len(hook.taken), len(other.taken)) == (1, 1)


def test_an_alert_of_a_removed_rule_ends(case: Case, hook: Hook) -> None:
    case.declare([{"on": "lag", "above": 10}], {"ops": {"webhook": hook.url}})
    case.check(lag=50)
    case.declare([{"on": "proof"}], {"ops": {"webhook": hook.url}})
    case.check(15, lag=50)
    assert [state for state, _ in told(hook)] == ["firing", "ended"]


def test_a_failure_ends_when_the_flow_works_again(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    case.check(state="failed")
    case.check(15, recovering=True)
    for state in ("skipped", "stopped", "failed", "retrying"):
        case.check(15, state=state)
    assert len(hook.taken) == 1
    case.check(15, state="up to date")
    assert [state for state, _ in told(hook)] == ["firing", "ended"]


def killed(case: Case, **facts: Any) -> None:
    """A check by a process that is killed before it sends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AlertFile, "_deliver", lambda *_: None)
        case.check(**facts)


def test_an_alert_that_ended_after_a_kill_can_fire_again(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    killed(case, state="failed")
    case.check(600)
    assert [state for state, _ in told(hook)] == ["ended"]  # the message may have been sent
    case.check(600)
    assert load_alerts(case.settings.storage, "shop") == []
    case.check(600, state="failed")
    assert [state for state, _ in told(hook)] == ["ended", "firing"]


def test_a_target_that_was_removed_or_renamed(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    case.check(state="failed")
    case.declare([{"on": "flow_failed"}], {"new": {"webhook": hook.url}})
    case.check(15, state="failed")
    assert [state for state, _ in told(hook)] == ["firing", "firing"]
    for _ in range(3):
        case.check(15)
    assert [state for state, _ in told(hook)[2:]] == ["ended"]
    assert case.settings.storage.alerts("shop").find_json() == {}


@pytest.mark.parametrize(
    "data",
    [
        b"[]", b"3", b"{", b"\xff", b'{"a": 1}', b'{"a": {}}',
        b'{"a": {"alert": "lag", "ended": null, "since": "x", "fired": null}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_replaced(case: Case, hook: Hook, data: bytes) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    file = case.settings.storage.alerts("shop")
    file.parent.make_folder()
    file.local_path.write_bytes(data)
    assert load_alerts(case.settings.storage, "shop") == []
    case.check(state="failed")
    assert len(hook.taken) == 1 and len(file.read_json()) == 1


def test_a_storage_that_cannot_be_written_is_told_once(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    folder = case.settings.storage.alerts("shop").parent
    folder.parent.make_folder()
    folder.local_path.write_text("no folder")
    file = AlertFile(case.settings)
    for _ in range(3):
        file.check(case.facts(state="failed"), case.events.extend, "u")
    assert [state for state, _ in told(hook)] == ["firing"] and len(case.fired()) == 1
    folder.local_path.unlink()
    file.check(case.facts(state="failed"), case.events.extend, "u")
    assert len(hook.taken) == 1 and load_alerts(case.settings.storage, "shop")[0].told == ("ops",)


def test_what_could_not_be_read_ends_nothing(case: Case, hook: Hook) -> None:
    case.declare([{"on": "lag", "above": 9}, {"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    case.check(lag=10)
    case.now += timedelta(seconds=15)
    failure = {"code": "STORAGE", "summary": "away"}
    facts = replace(case.facts(failure=failure), snapshot=None)
    AlertFile(case.settings).check(facts, case.events.extend, "u")
    orders, totals = case.facts().snapshot.datasets  # type: ignore[union-attr]
    damaged = (replace(orders, flows=(), problem="its log is damaged"), totals)
    facts = replace(case.facts(), snapshot=replace(case.facts().snapshot, datasets=damaged))  # type: ignore[type-var]
    AlertFile(case.settings).check(facts, case.events.extend, "u")
    assert told(hook)[1:] == [("firing", "the update has failed: [STORAGE] away")]


def test_an_expectation_without_rows_neither_begins_nor_ends(case: Case, hook: Hook) -> None:
    rules = [{"on": "expectation", "below": "90%"}, {"on": "expectation", "below": "90%", "over": "1 day"}]
    case.declare(rules, {"ops": {"webhook": hook.url}})
    some, none = case.facts(passed=(1, 10)), Quality(pipeline="shop", datasets=())
    facts = replace(some, quality=lambda over_s: some.quality(over_s) if over_s > 3600 else none)
    for _ in range(3):
        AlertFile(case.settings).check(facts, case.events.extend, "u")
    assert len(hook.taken) == 1
    AlertFile(case.settings).check(replace(some, quality=lambda _: none), case.events.extend, "u")
    assert len(hook.taken) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_clock_that_was_set_back(case: Case, hook: Hook, is_killed: bool) -> None:
    rule = {"on": "lag", "above": 1} if is_killed else {"on": "lag", "above": 1, "lasting": "5 minutes"}
    case.declare([rule], {"ops": {"webhook": hook.url}})
    (killed if is_killed else Case.check)(case, lag=2)
    case.check(-300 * 86_400, lag=2)
    case.check(300, lag=2)
    assert len(hook.taken) == 1


# -- targets


@contextmanager
def slow_server(*, trickles: bool) -> Iterator[str]:
    """A server that takes each connection and never ends its answer; the URL."""
    done = threading.Event()

    def serve(server: socket.socket) -> None:
        with suppress(OSError), server.accept()[0] as client:
            while trickles and not done.wait(0.1):
                client.sendall(b"H")
            done.wait()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threads = [threading.Thread(target=serve, args=(server,), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        done.set()


@pytest.mark.parametrize("trickles", [False, True])
def test_a_target_that_hangs_delays_no_other(
    case: Case, hook: Hook, trickles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "_WAIT_S", 0.5)
    with slow_server(trickles=trickles) as url:
        case.declare([{"on": "flow_failed"}], {"ops": {"webhook": url}, "pager": {"webhook": hook.url}})
        file = AlertFile(case.settings)
        began = time.monotonic()
        for _ in range(3):
            file.check(case.facts(state="failed"), case.events.extend, "u")
        assert time.monotonic() - began < 5
        assert len(hook.taken) == 1
        senders = [one for one in threading.enumerate() if one.name == "headrace-alert-ops"]
        assert len(senders) == 1  # it is not asked again while it may answer


def test_a_target_that_stays_away_is_logged_once(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"command": ["false"]}})
    file = AlertFile(case.settings)
    for _ in range(3):
        file.check(case.facts(state="failed"), case.events.extend, "u")
    assert len([one for one in caplog.records if "was not told" in one.message]) == 1


def test_a_target_chooses_no_pause(case: Case, hook: Hook) -> None:
    hook.answer = lambda request: 503  # with `Retry-After: 86400`
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url}})
    case.check(state="failed")
    assert len(hook.refused) == 2
    assert load_alerts(case.settings.storage, "shop")[0].problems == {"ops": "the answer was 503"}


def test_a_command_that_leaves_a_program_behind_is_done(case: Case) -> None:
    case.declare([{"on": "flow_failed"}], {"page": {"command": ["sh", "-c", "sleep 20 & exit 0"]}})
    case.check(state="failed")
    assert load_alerts(case.settings.storage, "shop")[0].told == ("page",)


def test_a_command_that_never_ends_is_killed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.alerts.messages._COMMAND_S", 0.2)
    case.declare([{"on": "flow_failed"}], {"page": {"command": ["sh", "-c", "sleep 20; echo"]}})
    case.check(state="failed")
    (alert,) = load_alerts(case.settings.storage, "shop")
    assert alert.problems == {"page": "it has not ended within 0.2 s, and was killed"}


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 3_000_000])
@pytest.mark.parametrize("kind", ["webhook", "command", "email"])
def test_a_target_takes_every_text(case: Case, hook: Hook, text: str, kind: str) -> None:
    with running_mail_server() as (server, _):
        email = {"to": ["a@b"], "sender": "c@d", "server": server, "encryption": "none"}
        target = {"webhook": hook.url, "command": ["true"], "email": email}[kind]
        case.declare([{"on": "flow_failed"}], {"ops": {kind: target}})
        case.check(failure={"code": "X", "summary": text})
    (alert,) = load_alerts(case.settings.storage, "shop")
    assert alert.told == ("ops",), alert.problems


def test_slack_gets_its_format(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"slack": hook.url}})
    case.check(failure={"code": "X", "summary": "<!channel> & <b>"})
    assert hook.taken[0].row == {
        "text": "🔴 shop: the update has failed: [X] &lt;!channel&gt; &amp; &lt;b&gt;\n`headrace run`"
    }


def test_a_web_hook_can_check_the_signature(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url, "secret": "k3y"}})
    case.check(state="failed")
    (request,) = hook.taken
    expected = hmac.new(b"k3y", request.body, hashlib.sha256).hexdigest()
    assert request.headers["x-headrace-signature"] == f"sha256={expected}"


def test_a_command_gets_the_message(case: Case) -> None:
    code = "import os, sys; open('got', 'w').write(sys.stdin.read() + os.environ['HEADRACE_ALERT'])"
    case.declare([{"on": "flow_failed"}], {"page": {"command": [sys.executable, "-c", code]}})
    case.check(state="failed")
    got = (case.root / "got").read_text()
    assert got.endswith("}shop: orders has failed: [BAD] bad")
    assert json.loads(got.rpartition("}")[0] + "}")["state"] == "firing"


def test_a_command_that_fails_is_tried_again(case: Case) -> None:
    case.declare([{"on": "flow_failed"}], {"page": {"command": [sys.executable, "-c", "exit('no pager')"]}})
    case.check(state="failed")
    (alert,) = load_alerts(case.settings.storage, "shop")
    assert alert.problems == {"page": "it has ended with 1: no pager"}


def test_a_secret_is_in_no_message(case: Case, hook: Hook) -> None:
    case.declare([{"on": "flow_failed"}], {"ops": {"webhook": hook.url, "secret": "pl4nted-secret"}})
    case.check(failure={"code": "X", "summary": "login pl4nted-secret failed"})
    assert told(hook) == [("firing", "the update has failed: [X] login *** failed")]
    kept = case.settings.storage.alerts("shop").read_text()
    assert "pl4nted-secret" not in kept and "pl4nted" not in str(case.events)


# -- the spec


@pytest.mark.parametrize(
    ("rule", "target", "problem"),
    [
        ({"on": "lagg"}, {}, "flow_failed"),
        ({"on": "lag"}, {}, "needs `above`"),
        ({"on": "lag", "above": True}, {}, "write such as above: 100000"),
        ({"on": "lag", "above": "many"}, {}, "write such as above: 100000"),
        ({"on": "lag", "above": "nan"}, {}, "write such as above: 100000"),
        ({"on": "lag", "above": "inf"}, {}, "write such as above: 100000"),
        ({"on": "lag", "below": 5}, {}, "needs `above`"),
        ({"on": "freshness", "above": "soon"}, {}, "15 minutes"),
        ({"on": "expectation", "below": "900%"}, {}, "99%"),
        ({"on": "proof", "above": 3}, {}, "proof has no limit"),
        ({"on": "proof", "to": ["opps"]}, {}, "did you mean `ops`?"),
        ({"on": "proof", "datset": ["a"]}, {}, "datset"),
        ({"on": "proof"}, {"slack": "https://a", "webhook": "https://b"}, "must have one of"),
        ({"on": "proof"}, {"slack": "hooks.slack.com/x"}, "must be a URL"),
        ({"on": "proof"}, {"slack": "https://a", "secret": "x"}, "only `webhook` uses"),
        ({"on": "proof"}, {"email": {"to": ["a@b"], "sender": "c@d"}}, "server"),
        ({"on": "proof"}, {"pager": "x"}, "pager"),
    ],
)  # fmt: skip
def test_a_wrong_spec_is_refused(
    case: Case, rule: dict[str, Any], target: dict[str, Any], problem: str
) -> None:
    with pytest.raises(HeadraceError) as caught:
        case.declare([rule], {"ops": target or {"webhook": "http://127.0.0.1:9/"}})
    assert problem in str(caught.value) and "headrace.yml" in str(caught.value), caught.value


def test_rules_need_a_target(case: Case) -> None:
    with pytest.raises(HeadraceError, match="no `targets`"):
        case.declare([{"on": "proof"}], {})


def test_a_mail(case: Case) -> None:
    with running_mail_server() as (server, mails):
        email = {"to": ["ops@example.org", "b@example.org"], "sender": "lake@example.org", "server": server}
        case.declare([{"on": "flow_failed"}], {"ops": {"email": {**email, "encryption": "none"}}})
        case.check(failure={"code": "X", "summary": "a\nBcc: all@example.org"})
    (mail,) = mails
    assert mail["Subject"] == "[headrace] shop: the update has failed: [X] a Bcc: all@example.org"
    assert mail["To"] == "ops@example.org, b@example.org" and mail["Bcc"] is None
    assert "help   headrace run" in mail.get_content()
