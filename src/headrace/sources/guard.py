"""What checks the sources of a flow while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.model.declarations import StreamingFlow
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position, SourceRange
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sources.systems import Systems
from headrace.state.facts import SourceFacts
from headrace.state.identity import SourceIdentity
from headrace.state.ledger import Ledger
from headrace.storage.location import Location

if TYPE_CHECKING:
    from headrace.sources.source import Source


@dataclass(frozen=True, kw_only=True)
class FlowRun:
    """A flow that runs with a checkpoint."""

    flow: StreamingFlow
    checkpoint: Location
    checkpoint_id: str
    facts: tuple[SourceFacts, ...]
    planned: tuple[Source, ...]
    systems: Systems
    ledger: Ledger
    on_data_loss: OnDataLoss
    session: SparkSession

    @property
    def sources(self) -> tuple[SourceIdentity, ...]:
        return tuple(facts.source for facts in self.facts)


class Guard:
    """Checks the sources of one kind while a flow runs; one batch at a time."""

    def __init__(self, run: FlowRun, sources: Sequence[SourceIdentity]) -> None:
        self.run = run
        self.sources = {source.index: source for source in sources}

    def open(self, positions: Mapping[int, Position]) -> None:
        """Check the checkpoint before the query starts, with the first position of each source that the table
        does not hold yet."""
        return

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Complete the ranges of a batch before its rows are read."""
        yield from ranges

    def check(self, ranges: Sequence[SourceRange]) -> None:
        """Check before the commit that the sources are still those that the batch has read."""
        return

    def finish(self, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Add to the ranges, before the commit, the marks that were gathered while the rows were read."""
        yield from ranges

    def explain(self, error: Exception) -> None:
        """Raise the error that explains why the batch failed, where a source explains it."""
        return

    def committed(self) -> None:
        return

    def is_replay(self, batch: int) -> bool:
        """Whether a batch that the target holds was made of the same input, as far as that is known."""
        return True

    def check_same_rows(self, batch: int) -> None:
        """Check that a batch which the target holds would give the same rows if it were computed again."""
        return

    def close(self) -> None:
        """Cancel the checks that still run in the background."""
        return
