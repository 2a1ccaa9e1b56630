"""What a table with changes by key must hold, in plain Python; imports nothing of Headrace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Change:
    """One record of a topic with one partition.

    Args:
        offset: Its place in the topic: the order in which records arrive.
        sequence: What orders the records of a key; equal ones are ordered by offset.
        note: A value whose changes begin no new row of a history.
    """

    offset: int
    key: int | None
    sequence: int
    operation: Literal["upsert", "delete", "truncate"]
    value: str | None = ""
    note: str | None = ""


@dataclass(frozen=True)
class Version:
    """A row of a history: what a key had from one sequence until before another."""

    key: int
    start: int
    end: int | None
    value: str | None
    note: str | None = ""


def growing_changes(draw: random.Random, first: int, number: int = 12) -> list[Change]:
    """Inserts, updates and deletes of few keys, out of order. Their sequences grow and differ, so that each
    batch changes rows, unlike those of `random_changes`. `first`: the offset of the first one."""
    new = []
    for offset in range(first, first + number):
        operation: Literal["upsert", "delete"] = draw.choice(["upsert", "upsert", "delete"])
        sequence = draw.randrange(3 * offset + 5) * 100_000 + offset
        new.append(Change(offset, draw.randrange(6), sequence, operation, f"value {offset}"))
    return new


def current_rows(changes: Sequence[Change]) -> dict[int, str | None]:
    """The value of each key after all changes, applied in their sequence."""
    rows: dict[int, str | None] = {}
    for one in sorted(changes, key=lambda change: (change.sequence, change.offset)):
        if one.operation == "truncate":
            rows.clear()
        elif one.operation == "delete":
            assert one.key is not None
            rows.pop(one.key, None)
        else:
            assert one.key is not None
            rows[one.key] = one.value
    return rows


def history_rows(changes: Sequence[Change], *, keeps: bool = False) -> set[Version]:
    """The history of each key after all changes: a new row for each change of the value.

    Args:
        changes: The changes.
        keeps: Whether a NULL changes nothing.
    """
    found: set[Version] = set()
    for key in {one.key for one in changes}:
        # Of records with one sequence the last one counts: the others would have no width.
        last = {one.sequence: one for one in sorted(changes, key=lambda one: one.offset) if one.key == key}
        current: Version | None = None
        assert key is not None
        for sequence, given in sorted(last.items()):
            one = _kept(given, current) if keeps else given
            is_same = current is not None and one.operation == "upsert" and one.value == current.value
            if current is not None and not is_same:
                found.add(replace(current, end=sequence))
            if one.operation == "delete":
                current = None
            elif current is not None and is_same:
                current = replace(current, note=one.note)
            else:
                current = Version(key, sequence, None, one.value, one.note)
        if current is not None:
            found.add(current)
    return found


def _kept(one: Change, before: Version | None) -> Change:
    if before is None:
        return one
    value = before.value if one.value is None else one.value
    return replace(one, value=value, note=before.note if one.note is None else one.note)


def random_events(
    seed: int,
    *,
    keys: int,
    count: int,
    values: Sequence[str | None] = "AAB",
    notes: Sequence[str | None] = ("x", "y", "z"),
) -> list[Change]:
    """Changes in no order, of which many are equal to their neighbours in the history of their key."""
    choose = random.Random(seed)
    return [
        Change(
            offset,
            choose.randrange(keys),
            choose.randrange(12),
            "delete" if choose.random() < 0.2 else "upsert",
            choose.choice(values),
            choose.choice(notes),
        )
        for offset in range(count)
    ]


def random_changes(seed: int, *, keys: int, count: int, truncates: int = 0) -> list[Change]:
    """Changes in no order, with equal sequences, deletes and keys that come again."""
    choose = random.Random(seed)
    found = []
    for offset in range(count):
        operation = "delete" if choose.random() < 0.3 else "upsert"
        key = choose.randrange(keys)
        found.append(Change(offset, key, choose.randrange(8), operation, f"{key}@{offset}"))
    for offset in choose.sample(range(count), truncates):
        found[offset] = Change(offset, None, choose.randrange(1, 8), "truncate")
    return found


def random_batches(seed: int, changes: Sequence[Change], count: int) -> list[list[Change]]:
    """The changes in the order of their offsets, cut at random places."""
    cuts = sorted(random.Random(seed).sample(range(1, len(changes)), count - 1))
    return [list(changes[a:b]) for a, b in zip([0, *cuts], [*cuts, len(changes)], strict=True)]


def partial_rows(changes: Sequence[Change]) -> dict[int, tuple[str | None, str | None]]:
    """The value and the note of each key after all changes, where a NULL note changes nothing."""
    rows: dict[int, tuple[str | None, str | None]] = {}
    for one in sorted(changes, key=lambda change: (change.sequence, change.offset)):
        assert one.key is not None
        if one.operation == "delete":
            rows.pop(one.key, None)
        else:
            before = rows.get(one.key, (None, None))[1]
            rows[one.key] = (one.value, before if one.note is None else one.note)
    return rows
