"""The checks of all sources of a flow while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from headrace.errors import HeadraceError
from headrace.model.ranges import Position, SourceRange
from headrace.sources.guard import FlowRun, Guard
from headrace.sources.registry import kind_of


class SourceGuards:
    """One guard for each kind of source that a flow reads."""

    def __init__(self, run: FlowRun) -> None:
        self._guards: dict[str, Guard] = {}
        for kind in dict.fromkeys(source.kind for source in run.sources):
            mine = [source for source in run.sources if source.kind == kind]
            self._guards[kind] = kind_of(kind).guard(run, mine)

    def open(self, positions: Mapping[int, Position]) -> None:
        for guard in self._guards.values():
            guard.open(positions)

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> tuple[SourceRange, ...]:
        """Complete the ranges of a batch before its rows are read; see `Guard.begin`."""
        found = [one for kind, guard in self._guards.items() for one in guard.begin(batch, _of(kind, ranges))]
        return _sorted(found)

    def finish(self, ranges: Sequence[SourceRange]) -> tuple[SourceRange, ...]:
        """Check the sources before the commit, and mark the ranges; see `Guard.check` and `Guard.finish`."""
        for kind, guard in self._guards.items():
            guard.check(_of(kind, ranges))
        found = [one for kind, guard in self._guards.items() for one in guard.finish(_of(kind, ranges))]
        return _sorted(found)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the error that explains why the block failed, where a source explains it."""
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            for guard in self._guards.values():
                guard.explain(error)
            raise

    def committed(self) -> None:
        for guard in self._guards.values():
            guard.committed()

    def is_replay(self, batch: int) -> bool:
        """Whether the target's batch was made of the same input; see `Guard.is_replay`."""
        return all(guard.is_replay(batch) for guard in self._guards.values())

    def check_same_rows(self, batch: int) -> None:
        """Check that the batch would give the same rows again; see `Guard.check_same_rows`."""
        for guard in self._guards.values():
            guard.check_same_rows(batch)

    def close(self) -> None:
        for guard in self._guards.values():
            guard.close()


def _of(kind: str, ranges: Sequence[SourceRange]) -> list[SourceRange]:
    return [one for one in ranges if one.kind == kind]


def _sorted(ranges: Sequence[SourceRange]) -> tuple[SourceRange, ...]:
    return tuple(sorted(ranges, key=lambda one: one.index))
