"""Options that a reader of Spark's would ignore silently."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from headrace.errors import OptionUnknownError, SourceLocation
from headrace.sources.requests import ReadRequest


@dataclass(frozen=True, kw_only=True)
class KnownOptions:
    """The options that a reader knows."""

    stream: tuple[str, ...]
    batch: tuple[str, ...]
    prefixes: tuple[str, ...]
    passed_on: str = ""  # the remedy that names the prefix of options that the reader passes on
    marks: frozenset[str]  # options that Spark ignores, and that Headrace adds to a reader

    def refuse_unknown(self, request: ReadRequest, location: SourceLocation) -> None:
        """Refuse options that the reader would ignore.

        Raises:
            OptionUnknownError: One is neither an option of the reader nor passed on by it.
        """
        known = self.stream if request.streaming else self.batch
        lowered = {name.lower() for name in known}
        for name in request.options:
            # A reader that is used a second time already has the options that Headrace adds.
            is_known = name.lower() in lowered or name in self.marks
            if not is_known and not name.lower().startswith(self.prefixes):
                raise self._unknown(request, name, location)

    def _unknown(self, request: ReadRequest, name: str, location: SourceLocation) -> OptionUnknownError:
        known, other = self.stream, self.batch
        if not request.streaming:
            known, other = other, known
        lowered = {one.lower(): one for one in known}
        near = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.7)
        facts, remedies = ["Spark would ignore it"], ["remove it"]
        if name.lower() in {one.lower() for one in other}:
            kinds = ("batch reads", "stream") if request.streaming else ("streams", "batch")
            facts = [f"it is an option of {kinds[0]}, and this is a {kinds[1]}"]
        elif near:
            remedies = [f"did you mean `{lowered[near[0]]}`?"]
        elif self.passed_on:
            remedies = [self.passed_on]
        return OptionUnknownError(
            f"Unknown option `{name}` of the `{request.format}` reader",
            location=location,
            facts=facts,
            remedies=remedies,
            params={
                "format": request.format,
                "option": name,
                "suggestion": lowered[near[0]] if near else None,
            },
        )
