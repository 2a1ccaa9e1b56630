"""When the batches of a flow start, and how often a view is refreshed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.texts import parse_seconds

INTERVAL_SETTING = "pipelines.trigger.interval"
"""The setting that other declarative pipelines know for a flow's interval."""

_ONCE = frozenset({"once", "availablenow"})
_AT_LEAST_ONCE = frozenset({"continuous", "realtime"})
_FORMS = "must be a time such as `30 seconds`, or `available_now`"


@dataclass(frozen=True)
class Trigger:
    # Minimum seconds between the starts of two batches; 0 waits only for the last batch.
    interval_s: float = 0.0
    # Whether the flow processes what its sources hold at its start, and then ends.
    available_now: bool = False

    @classmethod
    def parse(cls, value: Any) -> Trigger:
        """Read a time, or a trigger under Spark's own names (``{"processingTime": "10 seconds"}``)."""
        if isinstance(value, Mapping):
            return cls._of_mapping(value)
        name = _plain(value)
        if name in _ONCE:
            return cls(available_now=True)
        if isinstance(value, str) and value.split() and _plain(value.split()[0]) in _AT_LEAST_ONCE:
            raise ValueError(_refused(value.split()[0]))
        try:
            return cls(interval_s=parse_seconds(value))
        except ValueError:
            raise ValueError(f"{_FORMS}, not {value!r}") from None

    @classmethod
    def _of_mapping(cls, value: Mapping[Any, Any]) -> Trigger:
        if len(value) != 1:
            raise ValueError(f"{_FORMS}; a mapping has one key, such as {{'processingTime': '30 seconds'}}")
        ((key, given),) = value.items()
        name = _plain(key)
        if name in _AT_LEAST_ONCE:
            raise ValueError(_refused(key))
        if name in _ONCE and (given is True or _plain(given) == "true"):
            return cls(available_now=True)
        if name in ("processingtime", "interval"):
            return cls(interval_s=parse_seconds(given))
        raise ValueError(f"{_FORMS}, not {dict(value)!r}")

    def __str__(self) -> str:
        if self.available_now:
            return "available now"
        return f"{self.interval_s:g} s" if self.interval_s else "when the last batch has ended"


def _plain(value: Any) -> str:
    return value.replace("_", "").lower() if isinstance(value, str) else ""


def _refused(name: str) -> str:
    return (
        f"`{name}` is a mode of Spark that cannot commit batches exactly once; without a trigger, each batch "
        "starts when the last has ended"
    )
