"""Whether an increment costs less than the whole view, by bytes and by the seconds of earlier refreshes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from headrace.increments.increment import NotIncrementalError, Strategy
from headrace.model.texts import size_text

SMALL_S = 2.0
"""A view that is computed as a whole within this time is never refreshed otherwise."""
SMALL_BYTES = 32_000_000
"""Nor is one of smaller tables: if it takes longer, the process has just begun, or the machine is busy."""
_SMALL_FOR_KEYS_S = 5.0
_FEW_KEYS, _MORE_KEYS, _CHANGED = 0.02, 0.2, 0.2
_LITTLE = 0.05
FADING = 0.98
"""A strategy that was slower is tried again some day: its recorded seconds fade with each other refresh."""


def faded(seconds: Mapping[str, float], strategy: Strategy) -> dict[str, float]:
    """What a refresh records of earlier ones by other strategies. The whole view takes as long as before."""
    return {
        name: round(value if name == "full" else value * FADING, 3)
        for name, value in seconds.items()
        if name != strategy
    }


def with_attempt(seconds: Mapping[str, float], spent_s: float) -> dict[str, float]:
    """What a whole refresh records after a search for affected keys: the next refreshes do not search."""
    whole_s, found = seconds.get("full", 0.0), faded(seconds, "full")
    return found if spent_s < _LITTLE * whole_s else {**found, "keys": round(whole_s + spent_s, 3)}


def rejected(text: str) -> NoReturn:
    raise NotIncrementalError("INCREMENTAL_PLAN_REJECTED_BY_COST_MODEL", text)


def is_small(seconds: Mapping[str, float], find_bytes: Callable[[], int]) -> bool:
    """Whether a view is computed as a whole in a short time, so that an increment is not worth a look at its
    query. `find_bytes`: returns the size of its tables."""
    return seconds.get("full", SMALL_S) < SMALL_S or find_bytes() < SMALL_BYTES


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a refresh of a view reads and writes. `seconds`: the time of the last refresh by each strategy."""

    seconds: Mapping[str, float]
    changed_rows: int
    changed_bytes: int
    input_bytes: int  # of all tables; one that the query reads twice counts twice
    view_rows: int
    view_bytes: int

    @property
    def _whole(self) -> float:
        return self.input_bytes + 3 * self.view_bytes

    def check(self, strategy: Strategy, *, is_expensive: bool = False) -> None:
        """Refuse a strategy that costs more than the whole view, before anything is read."""
        whole_s = self.seconds["full"]
        if (last_s := self.seconds.get(strategy, 0.0)) > whole_s:
            rejected(f"the last refresh by `{strategy}` took {last_s:.1f} s, the whole view {whole_s:.1f} s")
        if strategy == "keys":
            if whole_s < _SMALL_FOR_KEYS_S:
                text = f"less than the {_SMALL_FOR_KEYS_S:.0f} s from which on `keys` pays"
                rejected(f"the whole view takes {whole_s:.1f} s, {text}")
            self.check_keys(0, 0, is_expensive=is_expensive)
            return
        is_large = (
            self.changed_rows >= _CHANGED * self.view_rows
            and self.changed_bytes >= _CHANGED * self.input_bytes
        )
        if strategy == "merge" and is_large:
            rejected(f"{self.changed_rows:,} rows have changed, and the view has {self.view_rows:,}")
        self._compare(self.changed_bytes + self._whole / whole_s, self._whole)

    def check_keys(self, keys: int, read_bytes: int, *, is_expensive: bool) -> int:
        """Refuse to compute keys again if that costs more than half of the whole view. Returns how many rows
        of the view may belong to them. `read_bytes`: the files that remain after pruning."""
        share = _MORE_KEYS if is_expensive or read_bytes < self.input_bytes / 2 else _FEW_KEYS
        most = self.most_keys(share)
        if keys > most:
            rejected(f"{keys:,} keys are affected, and the view has {self.view_rows:,} rows")
        whole = self._whole + (self.input_bytes if is_expensive else 0)
        second = self._whole / self.seconds["full"]
        self._compare(self.changed_bytes + read_bytes + 2 * second, whole / 2)
        return most

    def most_keys(self, share: float = _MORE_KEYS) -> int:
        return int(share * self.view_rows)

    @staticmethod
    def _compare(estimate: float, most: float) -> None:
        if estimate >= most:
            rejected(f"it would read about as much as the whole view ({size_text(int(estimate))})")
