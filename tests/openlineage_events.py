"""Checks OpenLineage's events against the JSON schemas of the specification (`tests/openlineage`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

_FOLDER = Path(__file__).parent / "openlineage"

Sent = dict[str, Any]


@cache
def _schemas() -> Mapping[str, Any]:
    """The schemas by their ids."""
    found = [json.loads(one.read_text(encoding="utf-8")) for one in _FOLDER.rglob("*.json")]
    return {one["$id"]: one for one in found}


@cache
def _registry() -> Registry[Any]:
    whole = [(id, Resource.from_contents(one)) for id, one in _schemas().items()]
    # Facets can refer to an older version of the schema of events, whose definitions of facets are equal.
    (events,) = (one for id, one in whole if id.endswith("/OpenLineage.json"))
    older = {
        one["$ref"].partition("#")[0]
        for schema in _schemas().values()
        for definition in schema["$defs"].values()
        for one in definition.get("allOf", ())
        if "$ref" in one
    }
    known = dict(whole)
    return Registry().with_resources(
        [*whole, *((id, events) for id in older if id.startswith("https") and id not in known)]
    )


def check_event(event: Sent) -> None:
    """Check an event, and each facet by the schema that it names."""
    (id,) = (one for one in _schemas() if one.endswith("/OpenLineage.json"))
    _check(event, {"$ref": f"{id}#/$defs/RunEvent"})
    for name, facet in _facets(event):
        file = facet["_schemaURL"].partition("#")[0].rpartition("/")[2]
        (schema,) = (one for one in _schemas() if one.endswith(f"/{file}"))
        _check({name: facet}, {"$ref": schema})


def _check(value: Any, schema: Any) -> None:
    validator = Draft202012Validator(schema, registry=_registry(), format_checker=FormatChecker())
    error = best_match(validator.iter_errors(value))
    assert error is None, f"at {error.json_path}: {error.message[:500]}"


def _facets(event: Sent) -> Iterator[tuple[str, Sent]]:
    datasets = [*event["inputs"], *event["outputs"]]
    holders = [event["run"], event["job"], *datasets]
    for one in holders:
        for name in ("facets", "inputFacets", "outputFacets"):
            yield from (one.get(name) or {}).items()


def parsed(lines: Iterable[str | bytes]) -> list[Sent]:
    """The events of lines of JSON, each checked."""
    found = [json.loads(one) for one in lines]
    for one in found:
        check_event(one)
    return found


def states(events: Iterable[Sent]) -> dict[str, list[str]]:
    """The types of the events of each job, in their order."""
    found: dict[str, list[str]] = {}
    for one in events:
        found.setdefault(one["job"]["name"], []).append(one["eventType"])
    return found


def last(events: Iterable[Sent], job: str) -> Sent:
    return [one for one in events if one["job"]["name"] == job][-1]


def sources_of(facet: Mapping[str, Any]) -> dict[str, set[str]]:
    """The columns from which each column comes, of a facet of column lineage."""
    return {
        column: {
            f"{one['name'].rpartition('/')[2]}.{one['field']} {way['subtype']}"
            for one in fields["inputFields"]
            for way in one["transformations"]
        }
        for column, fields in facet["fields"].items()
    }
