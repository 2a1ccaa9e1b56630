"""Which topics a Kafka source reads: named, by a pattern, or partition by partition."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

STRATEGIES = ("subscribe", "subscribePattern", "assign")

LATEST, EARLIEST = -1, -2
"""Spark's words for the two ends of a partition, where offsets are given as numbers."""

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics, which no pattern matches; other names may begin with underscores too."""


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """What a Kafka source subscribes to; one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None  # A regular expression, found anywhere in a topic's name
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Subscription:
        chosen = {key.lower(): value for key, value in options.items()}
        given = [name for name in STRATEGIES if name.lower() in chosen]
        if len(given) != 1:
            what = "names no topic" if not given else f"has {' and '.join(given)}"
            raise ValueError(f"{what}; it needs exactly one of {', '.join(STRATEGIES)}")
        text = chosen[given[0].lower()].strip()
        match given[0]:
            case "subscribePattern":
                compile_pattern(text)
                return cls(pattern=text)
            case "assign":
                partitions = _partitions(text)
                return cls(topics=tuple(partitions), partitions=partitions)
            case _:
                names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
                if not names:
                    raise ValueError("has an empty `subscribe`")
                return cls(topics=tuple(names))


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern that has the same meaning in Python and in Java, which Spark uses."""
    if not pattern:
        raise ValueError("has an empty pattern")
    try:
        with warnings.catch_warnings():
            # Sets within sets: Java supports them, and Python reads them as plain characters.
            warnings.simplefilter("error")
            return re.compile(pattern)
    except (re.error, Warning) as error:
        raise ValueError(f"has a pattern that cannot be compiled, `{pattern}`: {error}") from error


def matching(pattern: str, topics: Iterable[str]) -> tuple[str, ...]:
    """The topics that Spark reads for a pattern: the pattern matches a part of the name."""
    compiled = compile_pattern(pattern)
    return tuple(sorted(name for name in topics if name not in _INTERNAL and compiled.search(name)))


def whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def shown(pattern: str) -> str:
    found = re.fullmatch(r"\^\(\?:(.*)\)\$", pattern)
    return found[1] if found else pattern


def _partitions(text: str) -> dict[str, tuple[int, ...]]:
    wanted = 'has an `assign` that is not {"topic": [0, 1]}'
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{wanted}: {error}") from error
    if not isinstance(value, dict) or not value:
        raise ValueError(wanted)
    for name, numbers in value.items():
        are_numbers = isinstance(numbers, list) and all(type(one) is int and one >= 0 for one in numbers)
        if not numbers or not are_numbers:
            raise ValueError(f"{wanted}: `{name}` has {json.dumps(numbers)}")
    return {name: tuple(sorted(set(numbers))) for name, numbers in value.items()}


_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")


def is_topic_name(text: str) -> bool:
    """Whether Kafka lets a topic be called this (org.apache.kafka.common.internals.Topic)."""
    return _TOPIC_NAME.fullmatch(text) is not None
