"""The backlog of a flow: records and bytes over all its sources, measured rarely if that takes long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.model.events import Backlog
from headrace.run import reporting as lag_module
from headrace.run.reporting import LagGauge
from headrace.sources.requests import Lag

KAFKA, FILES, TABLE = (cast(Any, SimpleNamespace(kind=kind, index=n)) for n, kind in enumerate("kft"))
MEANS = {0: 100.0}


class Clock:
    """The lags of sources, and a time that passes while they are measured."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.takes_s = 0.0
        self.lags: dict[str, Lag | None] = {}

    def monotonic(self) -> float:
        return self.now

    def kind_of(self, kind: str) -> Any:
        return SimpleNamespace(lag=self.lag)

    def lag(self, one: Any, *_: Any) -> Lag | None:
        self.now += self.takes_s
        return self.lags[one.kind]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(lag_module, "time", found)
    monkeypatch.setattr(lag_module, "kind_of", found.kind_of)
    return found


def gauge() -> LagGauge:
    return LagGauge(cast(Any, None), cast(Any, None), MEANS.get)


@pytest.mark.parametrize(
    ("lags", "backlog"),
    [
        ({"k": Lag(30)}, Backlog(records=30, size_bytes=3000)),
        ({"k": Lag(0)}, Backlog(records=0, size_bytes=0)),
        ({"f": Lag(2, 500, counts_files=True)}, Backlog(records=None, size_bytes=500)),
        ({"t": Lag(7, 70), "k": Lag(1)}, Backlog(records=8, size_bytes=170)),
        ({"t": Lag(7, 70), "f": Lag(1, 5, counts_files=True)}, Backlog(records=None, size_bytes=75)),
        ({"k": Lag(1), "t": None}, Backlog()),
        ({}, Backlog()),
    ],
)
def test_records_and_bytes_are_known_if_those_of_every_source_are(
    clock: Clock, lags: dict[str, Lag | None], backlog: Backlog
) -> None:
    clock.lags = lags
    ranges = tuple(one for one in (KAFKA, FILES, TABLE) if one.kind in lags)
    assert gauge().measure(ranges) == backlog


def test_the_bytes_of_records_of_unknown_size_are_not_known(clock: Clock) -> None:
    clock.lags = {"k": Lag(3)}
    found = LagGauge(cast(Any, None), cast(Any, None), lambda source: None).measure((KAFKA,))
    assert found == Backlog(records=3, size_bytes=None)


@pytest.mark.parametrize(("takes_s", "pause_s"), [(0.0, 1.0), (0.5, 25.0)])
def test_a_slow_measurement_is_repeated_rarely(clock: Clock, takes_s: float, pause_s: float) -> None:
    clock.lags, clock.takes_s = {"k": Lag(3)}, takes_s
    measured = gauge()
    assert measured.measure((KAFKA,)).records == 3
    clock.now += pause_s - 0.01
    assert measured.measure((KAFKA,)) == Backlog()
    clock.now += 0.02
    assert measured.measure((KAFKA,)).records == 3
