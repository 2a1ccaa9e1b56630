"""The root of the tree, and its branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

_Error = TypeVar("_Error", bound="HeadraceError")


@dataclass(frozen=True, order=True)
class SourceLocation:
    """A line, and maybe a column, in a file of the user."""

    path: str  # the file, relative to the working directory if it is below it
    line: int  # counted from 1; 0 for a value that is not in a file, such as an option
    column: int | None = None  # counted from 1; ``None`` where only the line is known
    length: int | None = None  # characters to underline from ``column``

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        return f"{self.path}{line}" + (f":{self.column}" if self.column else "")


class HeadraceError(Exception):
    """The root of the tree: every error that Headrace raises on purpose.

    An error is frozen once it is made; `with_` and `with_location` give changed copies. `str(error)`
    is the whole error: code, summary, source location, facts, remedies.
    """

    code: ClassVar[str] = "HEADRACE_ERROR"
    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False

    summary: str
    location: SourceLocation | None
    facts: tuple[str, ...]
    remedies: tuple[str, ...]
    params: Mapping[str, Any]
    _frozen: bool = False

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
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        # Python itself sets __traceback__, __context__ and __notes__.
        if self._frozen and not name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} is frozen; with_() gives a changed copy")
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _build_error, (type(self), dict(vars(self)))

    @property
    def headline(self) -> str:
        """Code and summary, on one line."""
        return f"[{self.code}] {self.summary}"

    def __str__(self) -> str:
        lines = [self.headline]
        if self.location is not None:
            lines.append(f"  --> {self.location}")
        lines += [f"  {line}" for fact in self.facts for line in fact.splitlines()]
        lines += [
            f"  {'help:' if index == 0 else '     '} {remedy}" for index, remedy in enumerate(self.remedies)
        ]
        return "\n".join([*lines, f"  more: {more_command(self.code)}"])

    def with_(
        self,
        *,
        summary: str | None = None,
        location: SourceLocation | None = None,
        facts: Sequence[str] | None = None,
        remedies: Sequence[str] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a copy with other fields and the same cause and traceback.

        Args:
            summary: The new summary; `None` keeps the old one, as for each argument.
        """
        changes = {
            "summary": summary,
            "location": location,
            "facts": None if facts is None else tuple(facts),
            "remedies": None if remedies is None else tuple(remedies),
            "params": None if params is None else dict(params),
        }
        kept = {name: value for name, value in changes.items() if value is not None}
        copied = _build_error(type(self), {**vars(self), **kept})
        # Setting the cause also hides the error that the copy replaces.
        copied.__cause__ = self.__cause__
        return copied.with_traceback(self.__traceback__)

    def with_location(self, location: SourceLocation | None) -> Self:
        """Return the error at a location; an error that has a location keeps it."""
        return self if location is None or self.location is not None else self.with_(location=location)

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
            "params": dict(self.params),
            "transient": self.transient,
        }


def more_command(code: str) -> str:
    """The command that prints the page of an error code."""
    return f"headrace explain {code}"


def _build_error(kind: type[_Error], fields: Mapping[str, Any]) -> _Error:
    error = kind.__new__(kind, fields["summary"])
    vars(error).update(fields)
    return error


NOT_COMMITTED = "the batch was not committed"
"""A fact of errors about a record or a file in a batch; errors of a preview do not have it."""

GONE = "the JVM exited without an error message"
"""The text of an exception whose message was in a JVM that has exited."""


def text_of(error: BaseException | None) -> str:
    """The text of an exception; `GONE` if it was in a JVM that has exited."""
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
    """The work failed, and would fail again."""

    code = "RUN"


class RefusedError(RunError):
    """Continuing could lose or duplicate records, so nothing was done."""

    code = "REFUSED"


class TransientError(HeadraceError):
    """The work failed for a temporary reason; it is repeated with backoff."""

    code = "TRANSIENT"
    transient = True
