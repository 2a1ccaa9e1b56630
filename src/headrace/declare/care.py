"""The argument `maintenance` of declared tables."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from headrace.declare.arguments import Arguments
from headrace.declare.spec_model import TableCareSpec


def checked_care(arguments: Arguments, given: Any) -> Mapping[str, Any]:
    """The policy of a declaration, by the names of `headrace.model.care.CarePolicy`.

    Raises:
        ArgumentInvalidError: It is not a mapping, a key is unknown, or a value is invalid.
    """
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise arguments.invalid("maintenance", "must be a dict, such as {'small_files': 100}")
    known = list(TableCareSpec.model_fields)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            remedy = f"did you mean `{near[0]}`?" if near else f"the keys are: {', '.join(known)}"
            raise arguments.invalid("maintenance", f"has an unknown key `{key}`", remedy)
    try:
        return TableCareSpec.model_validate(dict(given)).values
    except ValidationError as error:
        first = error.errors()[0]
        said = first.get("ctx", {}).get("error") or first["msg"][:1].lower() + first["msg"][1:]
        raise arguments.invalid("maintenance", f"`{first['loc'][0]}`: {said}") from None
