"""What the rules of a pipeline find in its status. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.model.alerts import AlertRule
from headrace.model.event_forms import headline
from headrace.model.texts import counted, size_text
from headrace.observe.quality import Quality
from headrace.observe.snapshot import Snapshot
from headrace.observe.status import DatasetStatus
from headrace.observe.troubles import judge_age, judge_lag

UNKNOWN: Mapping[str, Any] = {"unknown": True}
"""The error of an update that somebody else runs."""


_UNDECIDED = ("unknown", "retrying", "reconnecting", "stopped", "skipped")
"""States of a flow or view that may have failed before, and has not worked since."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule says about one flow, table, or the pipeline."""

    rule: AlertRule
    subject: str
    is_bad: bool | None  # ``None`` if it cannot be judged now: nothing changes
    text: str = ""  # the trouble, in one line
    remedy: str = ""  # the command that shows more, or repairs it
    detail: str = ""  # tells several troubles of one subject apart
    ends: bool = True  # whether somebody is told when it is over

    @property
    def key(self) -> str:
        """The same text as long as the alert lasts. Two rules that tell different targets are two alerts."""
        return self.family + json.dumps(self.detail)

    @property
    def family(self) -> str:
        """The key without the detail. If this is unknown of a subject, so are all its details."""
        rule = self.rule
        limit = rule.above if rule.above is not None else rule.below
        return json.dumps([rule.on, limit, rule.lasting_s, rule.over_s, *rule.to, self.subject])


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What rules look at. What costs something is read only if a rule asks for it."""

    snapshot: Snapshot | None  # ``None`` if the storage could not be read
    database: str  # the schema that names of datasets leave out
    # Why the update of this process has failed; ``None`` if it has not; `UNKNOWN` without one.
    update_error: Mapping[str, Any] | None = field(default_factory=lambda: UNKNOWN)
    quality: Callable[[float], Quality]  # the counts of the last seconds
    # The losses of each flow in the last day: when, and of what.
    losses: Callable[[], Mapping[str, list[Mapping[str, Any]]]]
    proof: Callable[[], Mapping[str, Any] | None]  # the last proof on this machine
    disk: Callable[[], tuple[int, int] | None]  # free and all bytes; ``None`` for an object store

    @property
    def is_whole(self) -> bool:
        """Whether all tables could be read."""
        return self.snapshot is not None and all(one.problem is None for one in self.snapshot.datasets)


def judge(rules: tuple[AlertRule, ...], facts: Facts) -> list[Finding]:
    """What each rule finds, good or bad."""
    return [finding for rule in rules for finding in _JUDGES[rule.on](rule, facts)]


def _datasets(rule: AlertRule, facts: Facts) -> Iterator[DatasetStatus]:
    for one in () if facts.snapshot is None else facts.snapshot.datasets:
        if not one.orphaned and (not rule.datasets or one.dataset in rule.datasets):
            yield one


def _failures(rule: AlertRule, facts: Facts) -> Iterator[Finding]:
    for one in _datasets(rule, facts):
        states = [
            (flow.flow, "unknown" if flow.recovering else flow.state, flow.error)
            for flow in one.flows
            if not flow.orphaned
        ]
        if one.view is not None:
            states.append((one.dataset.within(facts.database), one.view.state, one.view.error))
        for name, state, error in states:
            is_known = facts.snapshot is not None and facts.snapshot.knows_failures
            is_bad = None if state in _UNDECIDED or not is_known else state == "failed"
            text = f"{name} has failed" + (f": {headline(error)}" if error else "")
            yield Finding(rule=rule, subject=name, is_bad=is_bad, text=text, remedy="headrace status")
    error = facts.update_error
    yield Finding(
        rule=rule,
        subject="the update",
        is_bad=None if error is UNKNOWN else error is not None,
        text="" if error is None else f"the update has failed: {headline(error)}",
        remedy="headrace run",
    )


def _lags(rule: AlertRule, facts: Facts) -> Iterator[Finding]:
    for flow in (flow for one in _datasets(rule, facts) for flow in one.flows if not flow.orphaned):
        assert facts.snapshot is not None
        trouble = judge_lag(flow, facts.snapshot, int(rule.above or 0))
        yield _limited(rule, flow.flow, trouble, f"{flow.flow} is ")


def _freshness(rule: AlertRule, facts: Facts) -> Iterator[Finding]:
    for one in _datasets(rule, facts):
        assert facts.snapshot is not None
        name = one.dataset.within(facts.database)
        yield _limited(rule, name, judge_age(one, facts.snapshot, rule.above or 0.0), f"{name} ")


def _limited(rule: AlertRule, subject: str, trouble: tuple[str, bool] | None, head: str) -> Finding:
    """What a rule with a limit finds, as `headrace status --check` judges it."""
    text, is_unknown = trouble or ("", False)
    is_bad = None if is_unknown else trouble is not None
    return Finding(rule=rule, subject=subject, is_bad=is_bad, text=head + text, remedy="headrace status")


def _expectations(rule: AlertRule, facts: Facts) -> Iterator[Finding]:
    chosen = {one.dataset: one for one in _datasets(rule, facts)}
    found = {one.dataset: one for one in facts.quality(rule.over_s).datasets} if chosen else {}
    for dataset, status in chosen.items():
        name = dataset.within(facts.database)
        if dataset not in found and not _has_batch(status, facts, rule.over_s):
            yield Finding(rule=rule, subject=name, is_bad=None)
            continue
        for one in found[dataset].expectations if dataset in found else ():
            total = one.passed + one.failed
            share = one.passed / total if total else 1.0
            yield Finding(
                rule=rule,
                subject=name,
                detail=one.name,
                is_bad=None if not total else share < (rule.below or 0),
                text=f"{name}: {share:.1%} of {counted(total, 'row')} pass the expectation `{one.name}` "
                f"(limit {(rule.below or 0) * 100:g}%)",
                remedy=f"headrace quality {name}",
            )


def _has_batch(status: DatasetStatus, facts: Facts, over_s: float) -> bool:
    """Whether a batch or a refresh of the last seconds is known: without one, no expectation is judged."""
    times = [flow.committed for flow in status.flows]
    times += [] if status.view is None else [status.view.refreshed]
    newest = max((at for at in times if at is not None), default=None)
    at = None if facts.snapshot is None else facts.snapshot.at
    return newest is not None and at is not None and (at - newest).total_seconds() < over_s


def _proof(rule: AlertRule, facts: Facts) -> Iterator[Finding]:
    proof = facts.proof()
    is_bad = None if proof is None else not proof.get("proven", True)
    text = "`headrace verify` has found that records are missing, doubled or changed"
    yield Finding(rule=rule, subject="the proof", is_bad=is_bad, text=text, remedy="headrace verify")


def _losses(rule: AlertRule, facts: Facts) -> Iterator[Finding]:
    flows = {flow.flow for one in _datasets(rule, facts) for flow in one.flows}
    for flow, losses in (facts.losses() if flows else {}).items():
        times = {str(one["at"]) for one in losses} if flow in flows else ()
        for at in sorted(times):
            number = sum(one["at"] == at for one in losses)
            yield Finding(
                rule=rule,
                subject=flow,
                detail=at,
                is_bad=True,
                text=f"{flow}: the source has lost {counted(number, 'range')} of records that were not read",
                remedy="headrace verify",
                ends=False,
            )


def _disk(rule: AlertRule, facts: Facts) -> Iterator[Finding]:
    known, limit = facts.disk(), rule.below or 0.0
    if known is None:
        return
    free, total = known
    share = free / max(total, 1)
    shown = f"{limit * 100:g}%" if limit <= 1 else size_text(int(limit))
    yield Finding(
        rule=rule,
        subject="the disk",
        is_bad=(share if limit <= 1 else free) < limit,
        text=f"the disk of the storage has {size_text(free)} left, {share:.1%} (limit {shown})",
        remedy="headrace maintain --only vacuum",
    )


_JUDGES: Mapping[str, Callable[[AlertRule, Facts], Iterator[Finding]]] = {
    "flow_failed": _failures,
    "lag": _lags,
    "freshness": _freshness,
    "expectation": _expectations,
    "proof": _proof,
    "loss": _losses,
    "disk": _disk,
}
