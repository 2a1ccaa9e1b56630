"""Checks the rules of a pipeline, and tells each target once when an alert begins, and once when it ends.

The alerts and the messages that were sent are in one file of the storage. They survive restarts, and a run
and `headrace alerts check` can check at the same time: each changes the file in one step, and sends the
messages that it has claimed there.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from headrace.alerts.conditions import Facts, Finding, judge
from headrace.alerts.messages import Message, UndeliveredError, send
from headrace.errors import HeadraceError, first_line
from headrace.model.event_forms import Event
from headrace.model.events import AlertEnded, AlertFired
from headrace.model.project import ProjectSettings
from headrace.storage.layout import Storage
from headrace.storage.location import Location

_logger = logging.getLogger(__name__)

_CLAIM = timedelta(minutes=2)
"""A message that was claimed so long ago and not sent: the process that claimed it has ended."""
_WAIT_S = 5.0
"""How long a check waits for targets. One that needs longer is told in the background."""
_LONGEST = 1_000
"""The most characters of a text: an error can quote a whole query, and targets have limits."""

Entry = dict[str, Any]
"""An alert in the file: ``since``, ``fired`` and ``ended`` (times, or ``None``), ``told`` and ``ended_told``
(names of targets), ``claims`` (times by target), ``problems`` (by target), and the texts."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert that was found, and has not ended."""

    key: str
    alert: str
    subject: str
    text: str
    since: datetime
    fired: datetime | None  # ``None`` while it has not lasted long enough
    told: tuple[str, ...]
    problems: Mapping[str, str]  # why a target was not told

    def to_json(self) -> dict[str, Any]:
        fired = None if self.fired is None else self.fired.isoformat()
        return {**vars(self), "since": self.since.isoformat(), "fired": fired, "told": list(self.told)}


@dataclass(frozen=True)
class _Delivery:
    key: str
    target: str
    message: Message


def load_alerts(storage: Storage, pipeline: str) -> list[Alert]:
    """The alerts of a pipeline that have not ended."""
    held = _entries(storage.alerts(pipeline).find_json())
    return [
        Alert(
            key=key,
            alert=one["alert"],
            subject=one["subject"],
            text=one["text"],
            since=datetime.fromisoformat(one["since"]),
            fired=_moment(one["fired"]),
            told=tuple(one["told"]),
            problems=one["problems"],
        )
        for key, one in held.items()
        if one["ended"] is None
    ]


@dataclass
class AlertFile:
    """The alerts of a pipeline in its storage. A run uses one for all its checks."""

    settings: ProjectSettings
    location: Location = field(init=False)
    # What could not be written: an alert about a storage that is full has to be told, too, and once.
    _unwritten: dict[str, Entry] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _warned: dict[str, str | None] = field(default_factory=dict)  # the last problem of each target
    _senders: dict[str, threading.Thread] = field(default_factory=dict)  # by target

    def __post_init__(self) -> None:
        self.location = self.settings.storage.alerts(self.settings.name)

    def check(self, facts: Facts, log: Callable[[Sequence[Event]], None], update: str) -> list[Finding]:
        """Judge all rules, tell the targets, and log an event for each alert that begins or ends."""
        found = judge(self.settings.alerts.rules, facts)
        events: list[Event] = []
        deliveries: list[_Delivery] = []
        busy = {name for name, thread in self._senders.items() if thread.is_alive()}

        def change(held: dict[str, Entry]) -> dict[str, Entry]:
            events.clear()
            deliveries.clear()
            turn = _Turn(self.settings, held, datetime.now(UTC), update)
            turn.follow(found, is_whole=facts.is_whole)
            events.extend(turn.events)
            deliveries.extend(turn.claim(busy))
            return turn.entries

        self._update(change)
        self._deliver(deliveries)
        log(events)
        until = time.monotonic() + _WAIT_S
        for thread in self._senders.values():
            thread.join(max(until - time.monotonic(), 0))
        return found

    def _deliver(self, deliveries: Sequence[_Delivery]) -> None:
        """Start a thread for each target: one that does not answer delays no other, and no run."""
        for target in dict.fromkeys(one.target for one in deliveries):
            mine = [one for one in deliveries if one.target == target]
            thread = threading.Thread(
                target=self._send, args=(mine,), name=f"headrace-alert-{target}", daemon=True
            )
            self._senders[target] = thread
            thread.start()

    def _send(self, deliveries: Sequence[_Delivery]) -> None:
        for one in deliveries:
            problem = None
            try:
                send(one.message, self.settings.alerts.targets[one.target], self.settings)
            except UndeliveredError as error:
                problem = str(error)
                if self._warned.get(one.target) != problem:
                    _logger.warning("the alert target %s was not told: %s", one.target, problem)
            self._warned[one.target] = problem
            self._update(partial(_record, one, problem))

    def _update(self, change: Callable[[dict[str, Entry]], dict[str, Entry]]) -> None:
        """Change the entries in one step; in memory if the storage cannot be read or written."""

        def merge(held: Any) -> dict[str, Entry]:
            return change(copy.deepcopy({**_entries(held), **(self._unwritten or {})}))

        with self._lock:
            try:
                if self.location.exists() or merge(None):
                    self.location.parent.make_folder()
                    self.location.update_json(merge)
                self._unwritten = None
            except (HeadraceError, OSError) as error:
                if self._unwritten is None:
                    _logger.warning("the alerts cannot be written: %s", first_line(error))
                self._unwritten = merge(None)


def _record(one: _Delivery, problem: str | None, held: dict[str, Entry]) -> dict[str, Entry]:
    """The entries after a message was sent, or not."""
    if (entry := held.get(one.key)) is not None:
        entry["claims"].pop(one.target, None)
        entry["problems"].pop(one.target, None)
        told = entry["told" if one.message.state == "firing" else "ended_told"]
        if problem is not None:
            entry["problems"][one.target] = problem
        if problem is not None and one.target in told:
            told.remove(one.target)
        elif problem is None and one.target not in told:
            told.append(one.target)
    return {key: one for key, one in held.items() if not _is_done(one)}


@dataclass
class _Turn:
    """One look at the rules: the entries of the file after it."""

    settings: ProjectSettings
    held: Mapping[str, Entry]
    now: datetime
    update: str
    entries: dict[str, Entry] = field(default_factory=dict)
    events: list[AlertFired | AlertEnded] = field(default_factory=list)

    def follow(self, found: list[Finding], *, is_whole: bool) -> None:
        """`is_whole`: whether a flow that nothing was found about is gone."""
        self.entries = copy.deepcopy({**self.held})
        for entry in self.entries.values():
            # The clock was set back.
            entry["since"] = min(entry["since"], self.now.isoformat(), key=datetime.fromisoformat)
        for finding in found:
            if finding.is_bad:
                self._bad(finding)
            elif finding.is_bad is False:
                self._good(finding.key)
        unknown = tuple(one.family for one in found if one.is_bad is None)
        for key in self.held.keys() - {one.key for one in found}:
            # No rule watches it any more, such as a flow that was removed; or it happened once.
            if is_whole and not key.startswith(unknown):
                self._good(key)

    def _bad(self, finding: Finding) -> None:
        entry = self.entries.get(finding.key)
        if entry is None or (entry["ended"] is not None and not entry["claims"]):
            entry = self.entries[finding.key] = _new(finding, self.now)
        entry["to"] = [*(finding.rule.to or self.settings.alerts.targets)]
        entry["text"] = _shown(self.settings.redactor(finding.text))
        lasts = self.now - datetime.fromisoformat(entry["since"])
        if entry["fired"] is None and lasts.total_seconds() >= finding.rule.lasting_s:
            entry["fired"] = self.now.isoformat()
            self.events.append(
                AlertFired(
                    update=self.update,
                    alert=finding.rule.on,
                    about=finding.subject,
                    text=entry["text"],
                    remedy=finding.remedy,
                )
            )

    def _good(self, key: str) -> None:
        entry = self.entries.get(key)
        if entry is None or entry["ended"] is not None:
            return
        if entry["fired"] is None:
            del self.entries[key]
            return
        entry["ended"] = self.now.isoformat()
        # A process that was killed while it sent may have told them.
        entry["told"] = [*dict.fromkeys([*entry["told"], *entry["claims"]])]
        if not entry["ends"]:
            entry["ended_told"] = list(entry["told"])
            return
        since = datetime.fromisoformat(entry["since"])
        self.events.append(
            AlertEnded(
                update=self.update,
                alert=entry["alert"],
                about=entry["subject"],
                text=entry["text"],
                lasted_s=(self.now - since).total_seconds(),
            )
        )

    def claim(self, busy: Collection[str]) -> Iterator[_Delivery]:
        """The messages that this process sends; none to targets that still take earlier ones."""
        targets = self.settings.alerts.targets
        for key, entry in [*self.entries.items()]:
            entry["claims"] = {
                target: at
                for target, at in entry["claims"].items()
                if target in busy or abs(self.now - datetime.fromisoformat(at)) <= _CLAIM
            }
            for target in _untold(entry):
                if target not in targets:
                    entry["told" if entry["ended"] else "to"].remove(target)
                elif target not in entry["claims"] and target not in busy:
                    entry["claims"][target] = self.now.isoformat()
                    yield _Delivery(key, target, self._message(entry))
            if _is_done(entry):
                del self.entries[key]

    def _message(self, entry: Entry) -> Message:
        return Message(
            state="firing" if entry["ended"] is None else "ended",
            pipeline=self.settings.name,
            alert=entry["alert"],
            subject=entry["subject"],
            text=entry["text"],
            remedy=entry["remedy"],
            since=datetime.fromisoformat(entry["since"]),
        )


def _new(finding: Finding, now: datetime) -> Entry:
    return {
        "alert": finding.rule.on,
        "subject": finding.subject,
        "text": finding.text,
        "remedy": finding.remedy,
        "ends": finding.ends,
        "to": [],
        "since": now.isoformat(),
        "fired": None,
        "ended": None,
        "told": [],
        "ended_told": [],
        "claims": {},
        "problems": {},
    }


_KINDS = dict.fromkeys(("alert", "subject", "text", "remedy", "since"), str) | {
    "ends": bool,
    "to": list,
    "told": list,
    "ended_told": list,
    "claims": dict,
    "problems": dict,
}


def _untold(entry: Entry) -> list[str]:
    """The targets that lack the newest message. Who was not told of the beginning is not told of the end."""
    if entry["ended"] is not None:
        return [one for one in entry["told"] if one not in entry["ended_told"]]
    return [] if entry["fired"] is None else [one for one in entry["to"] if one not in entry["told"]]


def _is_done(entry: Entry) -> bool:
    return entry["ended"] is not None and not entry["claims"] and not _untold(entry)


def _entries(held: Any) -> dict[str, Entry]:
    """The entries of the file. Damaged ones count as missing, and are left out at the next check."""
    return {key: one for key, one in held.items() if _is_entry(one)} if isinstance(held, dict) else {}


def _is_entry(one: Any) -> bool:
    if not isinstance(one, dict) or not all(isinstance(one.get(key), kind) for key, kind in _KINDS.items()):
        return False
    try:
        times = [_moment(one["fired"]), _moment(one["ended"])]
        times += map(datetime.fromisoformat, (one["since"], *one["claims"].values()))
    except (KeyError, TypeError, ValueError):
        return False
    return all(at is None or at.tzinfo is not None for at in times)


def _shown(text: str) -> str:
    """A text that every target takes: no control characters and no halves of them, and not too long."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
