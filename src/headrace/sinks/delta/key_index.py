"""The position of each key's row in a table: sorted arrays in memory, 32 bytes for each key.

The indexes of all tables of a process share one amount of memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

Unsigned = NDArray[np.uint64]
Signed = NDArray[np.int64]

NO_ROW = np.uint64(2**64 - 1)
"""The position of a key without a row: it was deleted."""
UNKNOWN = np.iinfo(np.int64).min
"""The sequence of a key of which nothing is known."""
BYTES_PER_KEY = 32
_FEW = 1 << 16
_UNUSED_S = 300.0
"""An index whose table had no batch for so long can be given up for that of another table."""


@dataclass(frozen=True)
class Entries:
    """Keys with the position of their row and their sequence, in arrays of one length."""

    first: Unsigned
    second: Unsigned  # another hash of the key, which is independent of the first
    position: Unsigned  # file and row of the key's row, as `positions` makes it, or `NO_ROW`
    sequence: Signed  # A number that does not decrease where the key's sequence increases

    @staticmethod
    def empty() -> Entries:
        unsigned = np.empty(0, dtype=np.uint64)
        return Entries(unsigned, unsigned, unsigned, np.empty(0, dtype=np.int64))

    @staticmethod
    def joined(*parts: Entries) -> Entries:
        return Entries(
            *(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Entries))
        )

    def __len__(self) -> int:
        return len(self.first)

    def select(self, chosen: Any) -> Entries:
        return Entries(*(getattr(self, one.name)[chosen] for one in fields(self)))

    def sorted(self) -> Entries:
        return self.select(np.lexsort((self.second, self.first)))


def positions(files: NDArray[Any], rows: NDArray[Any]) -> Unsigned:
    """The positions of rows, from the numbers of their files and their numbers in the file (both < 2^32)."""
    return (files.astype(np.uint64) << np.uint64(32)) | rows.astype(np.uint64)


def file_numbers(position: Unsigned) -> NDArray[np.int64]:
    return (position >> np.uint64(32)).astype(np.int64)


def row_numbers(position: Unsigned) -> NDArray[np.int64]:
    return (position & np.uint64(2**32 - 1)).astype(np.int64)


class KeyIndex:
    """An index of the keys of a table.

    New keys go to a small array first: inserting them one batch after the other into the large one would copy
    it each time.
    """

    def __init__(self) -> None:
        self._large = Entries.empty()
        self._small = Entries.empty()

    def __len__(self) -> int:
        return len(self._large) + len(self._small)

    def find(self, first: Unsigned, second: Unsigned) -> tuple[NDArray[np.bool_], Unsigned, Signed]:
        """Whether each key is known, the position of its row or `NO_ROW`, its sequence or `UNKNOWN`."""
        known = np.zeros(len(first), dtype=bool)
        position = np.full(len(first), NO_ROW, dtype=np.uint64)
        sequence = np.full(len(first), UNKNOWN, dtype=np.int64)
        for part in (self._large, self._small):
            at = _slots(part, first, second)
            found = at >= 0
            known |= found
            position[found] = part.position[at[found]]
            sequence[found] = part.sequence[at[found]]
        return known, position, sequence

    def put(self, entries: Entries) -> None:
        """Set the position and the sequence of keys; each key must be in `entries` once."""
        new = np.ones(len(entries), dtype=bool)
        for part in (self._large, self._small):
            at = _slots(part, entries.first, entries.second)
            found = at >= 0
            part.position[at[found]] = entries.position[found]
            part.sequence[at[found]] = entries.sequence[found]
            new &= ~found
        if new.any():
            self._small = _merged(self._small, entries.select(new).sorted())
            if len(self._small) > max(_FEW, len(self._large) // 8):
                self._large, self._small = _merged(self._large, self._small), Entries.empty()

    def forget_files(self, numbers: NDArray[np.int64], *, keeps_sequences: bool = False) -> None:
        """Forget the rows of files that the table no longer has, and, unless they are kept, the sequences."""
        for part in (self._large, self._small):
            gone = (part.position != NO_ROW) & np.isin(file_numbers(part.position), numbers)
            part.position[gone] = NO_ROW
            if not keeps_sequences:
                part.sequence[gone] = UNKNOWN

    def forget_deleted(self) -> None:
        for name in ("_large", "_small"):
            part = getattr(self, name)
            setattr(self, name, part.select(part.position != NO_ROW))


def _slots(part: Entries, first: Unsigned, second: Unsigned) -> NDArray[np.int64]:
    """The index of each key in sorted entries; -1 where they lack it."""
    found = np.full(len(first), -1, dtype=np.int64)
    if not len(part):
        return found
    at = np.searchsorted(part.first, first)
    waiting = np.arange(len(first))
    # Keys with the same first hash stand beside each other; that is rare.
    while len(waiting):
        here = at[waiting]
        inside = here < len(part)
        waiting, here = waiting[inside], here[inside]
        same = part.first[here] == first[waiting]
        waiting, here = waiting[same], here[same]
        is_it = part.second[here] == second[waiting]
        found[waiting[is_it]] = here[is_it]
        waiting = waiting[~is_it]
        at[waiting] += 1
    return found


def _merged(large: Entries, small: Entries) -> Entries:
    """Two sorted lists of different keys in one."""
    at = np.searchsorted(large.first, small.first)
    # Equal first hashes need no order of the second: `_slots` looks at all of them.
    return Entries(
        *(np.insert(getattr(large, one.name), at, getattr(small, one.name)) for one in fields(Entries))
    )


class SharesMemory(Protocol):
    """The index of a table, as `IndexMemory` sees it."""

    def give_up(self) -> bool:
        """Release the memory, unless a batch uses the index."""


class IndexMemory:
    """The memory of the indexes of a process.

    An index gets what the others leave. If that is too little, indexes that were not used for five minutes
    are given up, the longest unused one first. An index in use never is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changing = threading.Lock()
        self._held: WeakKeyDictionary[SharesMemory, tuple[float, int]] = WeakKeyDictionary()

    def reserve(self, index: SharesMemory, needed: int, limit: int) -> str | None:
        """Let an index have so many bytes, in place of those that it has; returns the reason if it cannot.
        `limit`: how many bytes all indexes may have together."""
        with self._changing:
            now = self._clock()
            self._held.pop(index, None)
            held = dict(self._held)
            unused = sorted((at, id(one), one) for one, (at, _) in held.items() if now - at >= _UNUSED_S)
            in_use = sum(size for at, size in held.values() if now - at < _UNUSED_S)
            if needed + in_use <= limit:
                for _, _, one in unused:
                    if needed + sum(size for _, size in held.values()) > limit and one.give_up():
                        del held[one], self._held[one]
            taken = sum(size for _, size in held.values())
            if needed + taken > limit:
                others = f", of which those of other tables have {_megabytes(taken)}" if taken else ""
                return f"the index needs {_megabytes(needed)}, and may have {_megabytes(limit)}{others}"
            self._held[index] = now, needed
            return None


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MB"
