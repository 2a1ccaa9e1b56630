"""Every failure that a user can meet, as one tree.

    HeadraceError
    ├── UsageError            the pipeline or the command line is wrong       exit code 2
    ├── SetupError            the machine lacks something                     exit code 1
    ├── RunError              the work failed and will fail again             exit code 1
    │   └── RefusedError      going on could lose or double records           exit code 1
    └── TransientError        the work failed and may succeed when repeated   exit code 1

An error has a stable code, one sentence, the place, what was and was not done, and
the remedy. The code is the class attribute ``code``; tests and machines match on it
and on ``params``, never on the prose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, order=True)
class SourceLocation:
    """A place in a file of the user's.

    Args:
        path: The file, as the user would type it where that is known.
        line: Counted from 1.
        column: Counted from 1; ``None`` where only the line is known.
        length: Characters to underline from ``column``.
    """

    path: str
    line: int
    column: int | None = None
    length: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + (f":{self.column}" if self.column else "")


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
