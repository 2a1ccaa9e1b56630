"""Checks the rules of a pipeline, and tells each target once when an alert begins, and once when it ends.

What was told is in one file of the storage: it survives restarts, and a run and `headrace alerts check` can
check at the same time. Each changes the file in one step, and sends the messages that it has claimed there.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.alerts.conditions import Facts, Finding, judge
from headrace.alerts.messages import Message, UndeliveredError, send
from headrace.model.event_forms import Emitter
from headrace.model.events import AlertEnded, AlertFired
from headrace.model.project import ProjectSettings
from headrace.storage.layout import Storage
from headrace.storage.location import Location

_logger = logging.getLogger(__name__)

_CLAIM = timedelta(minutes=2)
"""A message that was claimed so long ago and not sent: the process that claimed it has ended."""

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
    held = storage.alerts(pipeline).find_json() or {}
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
    """The alerts of a pipeline in its storage."""

    settings: ProjectSettings
    location: Location = field(init=False)

    def __post_init__(self) -> None:
        self.location = self.settings.storage.alerts(self.settings.name)

    def check(self, facts: Facts, emit: Emitter, update: str) -> list[Finding]:
        """Judge all rules, tell the targets, and emit an event for each alert that begins or ends."""
        found = judge(self.settings.alerts.rules, facts)
        events: list[AlertFired | AlertEnded] = []
        deliveries: list[_Delivery] = []

        def change(held: Any) -> dict[str, Entry]:
            events.clear()
            deliveries.clear()
            turn = _Turn(self.settings, held if isinstance(held, dict) else {}, datetime.now(UTC), update)
            turn.follow(found)
            events.extend(turn.events)
            deliveries.extend(turn.claim())
            return turn.entries

        self._update(change)
        for event in events:
            emit(event)
        self._deliver(deliveries)
        return found

    def _deliver(self, deliveries: list[_Delivery]) -> None:
        results = [(one, self._send(one)) for one in deliveries]

        def change(held: Any) -> dict[str, Entry]:
            entries = {key: _copied(one) for key, one in (held or {}).items()}
            for one, problem in results:
                if (entry := entries.get(one.key)) is not None:
                    entry["claims"].pop(one.target, None)
                    entry["problems"].pop(one.target, None)
                    if problem is not None:
                        entry["problems"][one.target] = problem
                    else:
                        entry["told" if one.message.state == "firing" else "ended_told"].append(one.target)
            return {key: one for key, one in entries.items() if not _is_done(one)}

        if results:
            self._update(change)

    def _send(self, one: _Delivery) -> str | None:
        """Why a message was not delivered; ``None`` if it was."""
        try:
            send(one.message, self.settings.alerts.targets[one.target], self.settings)
        except UndeliveredError as error:
            _logger.warning("the alert target %s was not told: %s", one.target, error)
            return str(error)
        return None

    def _update(self, change: Callable[[Any], dict[str, Entry]]) -> None:
        if not self.location.exists() and not change(None):
            return
        self.location.parent.make_folder()
        self.location.update_json(change)


@dataclass
class _Turn:
    """One look at the rules: the entries of the file after it."""

    settings: ProjectSettings
    held: Mapping[str, Entry]
    now: datetime
    update: str
    entries: dict[str, Entry] = field(default_factory=dict)
    events: list[AlertFired | AlertEnded] = field(default_factory=list)

    def follow(self, found: list[Finding]) -> None:
        self.entries = {key: _copied(one) for key, one in self.held.items()}
        for finding in found:
            if finding.is_bad:
                self._bad(finding)
            elif finding.is_bad is False:
                self._good(finding.key)
        for key in self.held.keys() - {one.key for one in found}:
            # Nobody watches it any more, such as a flow that was removed; or it happened once.
            self._good(key)

    def _bad(self, finding: Finding) -> None:
        entry = self.entries.get(finding.key)
        if entry is None or (entry["ended"] is not None and not entry["claims"]):
            everybody = finding.rule.to or self.settings.alerts.targets
            entry = self.entries[finding.key] = _new(finding, everybody, self.now)
        entry["text"] = self.settings.redactor(finding.text)
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

    def claim(self) -> Iterator[_Delivery]:
        """The messages that this process sends."""
        for key, entry in [*self.entries.items()]:
            if _is_done(entry):
                del self.entries[key]
                continue
            for target in _untold(entry):
                if target not in self.settings.alerts.targets:
                    entry["to"].remove(target)
                    continue
                claimed = _moment(entry["claims"].get(target))
                if claimed is None or self.now - claimed > _CLAIM:
                    entry["claims"][target] = self.now.isoformat()
                    yield _Delivery(key, target, self._message(entry))

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


def _new(finding: Finding, to: Iterable[str], now: datetime) -> Entry:
    return {
        "alert": finding.rule.on,
        "subject": finding.subject,
        "text": finding.text,
        "remedy": finding.remedy,
        "ends": finding.ends,
        "to": list(to),
        "since": now.isoformat(),
        "fired": None,
        "ended": None,
        "told": [],
        "ended_told": [],
        "claims": {},
        "problems": {},
    }


def _untold(entry: Entry) -> list[str]:
    """The targets that lack the newest message. Who was not told of the beginning is not told of the end."""
    if entry["ended"] is not None:
        return [one for one in entry["told"] if one not in entry["ended_told"]]
    return [] if entry["fired"] is None else [one for one in entry["to"] if one not in entry["told"]]


def _is_done(entry: Entry) -> bool:
    return entry["ended"] is not None and not entry["claims"] and not _untold(entry)


def _copied(entry: Entry) -> Entry:
    copied: Entry = copy.deepcopy(entry)
    return copied


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
