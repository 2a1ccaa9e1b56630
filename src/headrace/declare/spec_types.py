"""The types of values that a spec may hold."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from headrace.model.texts import parse_seconds

MEMORY = re.compile(r"\d+[kmgKMG]")


def matching(pattern: re.Pattern[str], meaning: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, str) and not pattern.fullmatch(value):
            raise ValueError(meaning)
        return value

    return BeforeValidator(check)


def _flag(value: Any) -> Any:
    # A value that came through an environment variable is text.
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def parse_memory(value: Any) -> Any:
    """A memory size such as ``512m`` in bytes."""
    if isinstance(value, str) and MEMORY.fullmatch(value):
        return int(value[:-1]) << {"k": 10, "m": 20, "g": 30}[value[-1].lower()]
    raise ValueError("must be a memory size, such as 2g or 512m")


Text = Annotated[str, Field(strict=True, min_length=1)]
Flag = Annotated[bool, Field(strict=True), BeforeValidator(_flag)]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Settings = dict[str, Annotated[str, Field(strict=True)]]


class Part(BaseModel):
    """A mapping of a spec."""

    # `spec_model.describe_fields` takes the descriptions in the docs from the docstrings below the fields.
    # Pydantic would read them, and build each model, in every command.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
