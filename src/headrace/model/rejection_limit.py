"""The limit of rejected records of a batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?) ?%")


@dataclass(frozen=True)
class RejectionLimit:
    """The largest share, or number, of the records of a batch that may be rejected.

    Args:
        percent: The share in percent; ``None`` for a number.
        records: The number; ``None`` for a share.

    Example:
        >>> RejectionLimit.parse("5%").allows(6, 100)
        False
        >>> RejectionLimit.parse(6).allows(6, 100)
        True
    """

    percent: float | None = None
    records: int | None = None

    @classmethod
    def parse(cls, value: Any) -> Self:
        """The limit from ``5%`` or a number of records.

        Raises:
            ValueError: The value is neither.
        """
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(records=value)
        found = _SHARE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is not None and float(found[1]) <= 100:
            return cls(percent=float(found[1]))
        raise ValueError(f"must be a share such as 5%, or a number of records, not {value!r}")

    def allows(self, rejected: int, records: int) -> bool:
        """Whether so many rejected records, of so many, are within the limit."""
        if self.percent is not None:
            return rejected * 100 <= self.percent * records
        return self.records is None or rejected <= self.records

    def __str__(self) -> str:
        return f"{self.records:,} records" if self.percent is None else f"{self.percent:g}%"
