"""What is wrong in a spec, in the words of the spec: unknown keys, and values of the wrong kind."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

from headrace.declare.spec_model import KAFKA_SETTINGS, SETTINGS, Library
from headrace.declare.yaml_source import Mapped, Scalar, Sequence, Value
from headrace.errors import HeadraceError, SourceLocation, SpecInvalidError, SpecUnknownKeyError


def check_keys(
    value: Value, model: type[BaseModel], path: tuple[str, ...] = (), also: Iterable[str] = ()
) -> None:
    """Refuse keys that mean nothing.

    Args:
        value: A spec, or a part of one.
        model: What may stand there.
        path: The keys that lead to it.
        also: Further keys that may stand there, and are not looked into.

    Raises:
        SpecUnknownKeyError: A key means nothing; it suggests the nearest that does.
        SpecInvalidError: A setting's value is not text.
    """
    if not isinstance(value, Mapped):
        return
    known = [*model.model_fields, *also]
    for key, item in value.items.items():
        if key not in known:
            raise _unknown_key(key, value.keys[key], known, path)
        if key in also:
            continue
        if key in SETTINGS:
            _check_settings(key, item)
        elif isinstance(item, Sequence) and key == "libraries":
            for entry in item.items:
                check_keys(entry, Library, (*path, key))
        elif (inner := _model_of(model, key)) is not None:
            check_keys(item, inner, (*path, key))


def _model_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    annotation: Any = model.model_fields[key].annotation
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _check_settings(name: str, value: Value) -> None:
    if not isinstance(value, Mapped):
        return
    for key, item in value.items.items():
        if isinstance(item, Mapped | Sequence):
            flat = f"`{key}.{next(iter(item.items), 'name')}: ..`" if isinstance(item, Mapped) else "one text"
            raise SpecInvalidError(
                f"{name}.{key} must be text, not {_kind(item)}",
                location=value.keys[key],
                remedies=[f"write the name with its dots on one line: {flat}"],
                params={"key": f"{name}.{key}"},
            )
        if name == "kafka" and key not in KAFKA_SETTINGS:
            bare = key.removeprefix("kafka.")
            close = [bare] if bare in KAFKA_SETTINGS else []
            close = close or difflib.get_close_matches(key, sorted(KAFKA_SETTINGS), n=1, cutoff=0.85)
            if close:
                raise _unknown_key(key, value.keys[key], close, ("kafka",))


def _unknown_key(
    key: str, location: SourceLocation, known: Iterable[str], path: tuple[str, ...]
) -> SpecUnknownKeyError:
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1)
    where = f" under `{'.'.join(path)}`" if path else ""
    hint = f"; did you mean `{close[0]}`?" if close else ""
    return SpecUnknownKeyError(
        f"Unknown key `{key}`{where}{hint}",
        location=location,
        remedies=[f"write `{match}`" for match in close] or [f"the keys here are: {', '.join(known)}"],
        params={"key": ".".join((*path, key)), "suggestion": close[0] if close else None},
    )


def build_fault(error: ValidationError, merged: Mapped, shown: str) -> SpecInvalidError:
    """All that the model found, as one error: the first in the file, and the others as its facts."""
    first, *others = sorted((_problem(detail, merged, shown) for detail in error.errors()), key=_order)
    return first.with_(
        facts=[*first.facts, *(f"also {other.location}: {other.summary}" for other in others[:4])]
    )


def _order(error: HeadraceError) -> tuple[int, int]:
    return (error.location.line, error.location.column or 0) if error.location else (0, 0)


def _problem(detail: Any, merged: Mapped, shown: str) -> SpecInvalidError:
    """Pydantic's finding in the words of the spec."""
    path = tuple(part for part in detail["loc"] if not (isinstance(part, str) and part[:1].isupper()))
    key = ".".join(str(part) for part in path)
    location, value = _find(merged, path, shown)
    if detail["type"] == "missing":
        return SpecInvalidError(
            f"`{key}` is missing",
            location=SourceLocation(shown, 1) if len(path) == 1 else location,
            remedies=[f"add a line such as `{path[-1]}: {'my_pipeline' if key == 'name' else '..'}`"],
            params={"key": key},
        )
    meanings = {
        "string_type": f"must be text, not {_kind(value)}",
        "string_too_short": "must not be empty",
        "bool_type": f"must be true or false, not {_kind(value)}",
        "literal_error": f"must be one of {detail.get('ctx', {}).get('expected', '')}",
        "list_type": f"must be a list, not {_kind(value)}",
        "too_short": "must not be empty",
        "dict_type": f"must be a mapping, not {_kind(value)}",
        "model_type": f"must be a mapping, not {_kind(value)}",
        "model_attributes_type": f"must be a mapping, not {_kind(value)}",
    }
    if detail["type"] == "value_error":
        meaning = str(detail["ctx"]["error"])
    else:
        meaning = meanings.get(detail["type"], detail["msg"])
    return SpecInvalidError(
        f"`{key}` {meaning}", location=location, remedies=_examples(path, value), params={"key": key}
    )


def _examples(path: tuple[Any, ...], value: Value | None) -> list[str]:
    match path[0]:
        case "libraries":
            return ["write libraries: [{glob: {include: transformations/**}}]"]
        case "trigger" | "views" if len(path) == 1:
            return [f"write {path[0]}: {{interval: 10 seconds}}"]
        case "kafka" if len(path) == 1:
            return ["write kafka: {bootstrap.servers: embedded}"]
        case _ if isinstance(value, Scalar) and not isinstance(value.value, str | None):
            return [f'put it in quotes: "{value.text}"'] if len(path) == 1 else []
        case _:
            return []


def _find(value: Value, path: tuple[Any, ...], shown: str) -> tuple[SourceLocation, Value | None]:
    """The deepest place on the way to a value, and the value itself where it exists."""
    location = SourceLocation(shown, 1)
    current: Value | None = value
    for part in path:
        if isinstance(current, Mapped) and part in current.items:
            location = current.keys.get(part, location)
            current = current.items[part]
        elif isinstance(current, Sequence) and isinstance(part, int) and part < len(current.items):
            current = current.items[part]
            location = current.location
        else:
            return location, None
    return (current.location if isinstance(current, Scalar) else location), current


def _kind(value: Value | None) -> str:
    match value:
        case Mapped():
            return "a mapping"
        case Sequence():
            return "a list"
        case Scalar(value=bool()):
            return f"{value.text} (true or false)"
        case Scalar(value=int() | float()):
            return f"{value.text} (a number)"
        case Scalar(value=None) | None:
            return "nothing"
        case _:
            return f"`{value.text}`"
