"""A source as it is now: the answers that most kinds of source share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from headrace.model.ranges import Position
from headrace.model.remedies import ChosenStart
from headrace.state.facts import ChosenPosition, FlowFacts, ListOrigin, Losses, NextPosition, ReadBefore
from headrace.state.history import History
from headrace.state.identity import SourceIdentity


@dataclass(frozen=True, kw_only=True)
class Facts(ABC):
    """A source as it is now; see `SourceFacts`. These are the answers of a source without surprises."""

    source: SourceIdentity

    @property
    def can_resume(self) -> bool:
        return True

    def check(self, flow: FlowFacts) -> None:
        return

    def is_same(self, flow: FlowFacts, then: ReadBefore) -> bool:
        return self.source.identity == then.source.identity

    @abstractmethod
    def next_position(self, flow: FlowFacts, history: History) -> NextPosition | None: ...

    def check_position(
        self, flow: FlowFacts, history: History, position: Position, *, continues: bool
    ) -> tuple[Position, Losses]:
        return position, ()

    def choose_position(
        self, flow: FlowFacts, history: History, position: Position, start: ChosenStart
    ) -> ChosenPosition | None:
        return None

    def check_lists(self, flow: FlowFacts, origin: ListOrigin) -> ListOrigin | None:
        return None
