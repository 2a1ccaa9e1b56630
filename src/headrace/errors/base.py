"""The root of the tree, and its branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, order=True)
class SourceLocation:
    """A place in a file of the user's.

    Args:
        path: The file, as the user would type it where that is known.
        line: Counted from 1; 0 for what stands in no file, such as an option.
        column: Counted from 1; ``None`` where only the line is known.
        length: Characters to underline from ``column``.
    """

    path: str
    line: int
    column: int | None = None
    length: int | None = None

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        return f"{self.path}{line}" + (f":{self.column}" if self.column else "")


class HeadraceError(Exception):
    """The root: whatever Headrace raises on purpose.

    Args:
        summary: One sentence: what is wrong.
        location: The place in the user's files.
        facts: Lines under the summary: what was found, what was and was not done.
        remedies: What to do, commands first. Only commands that exist.
        params: What machines and tests match on; JSON values.
    """

    code: ClassVar[str] = "HEADRACE_ERROR"
    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False

    def __init__(
        self,
        summary: str,
        *,
        location: SourceLocation | None = None,
        facts: Sequence[str] = (),
        remedies: Sequence[str] = (),
        params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.location = location
        self.facts = tuple(facts)
        self.remedies = tuple(remedies)
        self.params = dict(params or {})

    def __str__(self) -> str:
        return f"[{self.code}] {self.summary}"

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON: the same fields that the text form prints."""
        where = self.location
        return {
            "code": self.code,
            "summary": self.summary,
            "location": None
            if where is None
            else {"path": where.path, "line": where.line, "column": where.column},
            "facts": list(self.facts),
            "remedies": list(self.remedies),
            "params": self.params,
            "transient": self.transient,
        }


NOT_COMMITTED = "the batch was not committed"
"""What an error says of the batch in which a bad record or file was met; a preview has none."""

GONE = "its JVM has gone, and with it the message"
"""The text of an exception that came from a JVM which cannot be asked any more."""


def text_of(error: BaseException | None) -> str:
    """What an exception says; one that came from a JVM may have nobody left to ask."""
    try:
        return "" if error is None else str(error)
    except Exception:
        return GONE


class UsageError(HeadraceError):
    """The pipeline or the command line is wrong; nothing was started."""

    code = "USAGE"
    exit_code = 2


class SetupError(HeadraceError):
    """The machine lacks something that Headrace needs."""

    code = "SETUP"


class RunError(HeadraceError):
    """The work failed, and repeating it would fail again."""

    code = "RUN"


class RefusedError(RunError):
    """Going on could lose or double records, so nothing was done."""

    code = "REFUSED"


class TransientError(HeadraceError):
    """The work failed for a reason that passes; it is repeated with backoff."""

    code = "TRANSIENT"
    transient = True
