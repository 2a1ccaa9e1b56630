"""How many rows of a batch went where."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """The row counts of one batch, as its commit states them: input = accepted + quarantined + dropped.

    Args:
        input: Rows that the query returned.
        accepted: Rows that the target takes.
        quarantined: Rows that the quarantine table takes.
        dropped: Rows that an expectation drops.

    Raises:
        ValueError: The counts do not add up.

    Example:
        >>> BatchCounts(input=7, accepted=5, quarantined=2).to_json()
        {'input': 7, 'accepted': 5, 'quarantined': 2, 'dropped': 0}
    """

    input: int
    accepted: int
    quarantined: int = 0
    dropped: int = 0

    def __post_init__(self) -> None:
        if self.input != self.accepted + self.quarantined + self.dropped:
            raise ValueError(f"row counts do not add up: {self}")

    def to_json(self) -> dict[str, int]:
        return asdict(self)
