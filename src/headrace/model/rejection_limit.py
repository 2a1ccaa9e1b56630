"""The limit of rejected records of a batch, or of the last batches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

_LIMIT = re.compile(r"(\d{1,3}(?:\.\d+)?) ?%|(\d+)")
_WINDOW = re.compile(r"(.+?) +of +([1-9]\d{0,2}) +batches")


@dataclass(frozen=True)
class RejectionLimit:
    """The maximum share, or the maximum number, of rejected records in one or more batches.

    Example:
        >>> RejectionLimit.parse("5%").allows(6, 100)
        False
        >>> RejectionLimit.parse("6 of 20 batches").allows(6, 100)
        True
    """

    percent: float | None = None  # the share in percent; ``None`` for a number
    records: int | None = None  # the number; ``None`` for a share
    batches: int = 1  # how many batches are judged together: the batch and those before it

    @classmethod
    def parse(cls, value: Any) -> Self:
        """The limit from ``5%``, a number of records, or one of the two ``of 20 batches``.

        Raises:
            ValueError: The value is something else.
        """
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(records=value)
        text = value.strip() if isinstance(value, str) else ""
        window = _WINDOW.fullmatch(text)
        batches = 1 if window is None else int(window[2])
        found = _LIMIT.fullmatch(text if window is None else window[1])
        if found is not None and found[2] is not None and window is not None:
            return cls(records=int(found[2]), batches=batches)
        if found is not None and found[1] is not None and float(found[1]) <= 100:
            return cls(percent=float(found[1]), batches=batches)
        raise ValueError(
            f"must be a share such as 5%, or a number of records, also `5% of 20 batches`, not {value!r}"
        )

    def allows(self, rejected: int, records: int) -> bool:
        """Whether so many rejected records, of so many, are within the limit."""
        if self.percent is not None:
            return rejected * 100 <= self.percent * records
        return self.records is None or rejected <= self.records

    def __str__(self) -> str:
        limit = f"{self.records:,} records" if self.percent is None else f"{self.percent:g}%"
        return limit if self.batches == 1 else f"{limit} of {self.batches} batches"
