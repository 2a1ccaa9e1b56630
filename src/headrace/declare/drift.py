"""The argument `drift` of readers, and the schema that a read has evolved to."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from headrace.declare.arguments import Arguments
from headrace.declare.registry import ActivePipeline
from headrace.model.declarations import EVERY_COLUMN, RESCUED, Drift, DriftAction
from headrace.model.queries import running_query
from headrace.state.schema_versions import SchemaVersions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headrace.sources.new_fields import Evolving

_ACTIONS = get_args(DriftAction)


def parse_drift(arguments: Arguments, value: Any, schema: StructType | None) -> Drift:
    """The actions of an argument `drift`: one for all fields, or a dict by the name of the field.

    Raises:
        ArgumentInvalidError: It is something else, or the records have no schema.
    """
    if value is None:
        return Drift()
    actions = value if isinstance(value, Mapping) else {EVERY_COLUMN: value}
    for name, action in actions.items():
        if not isinstance(name, str) or action not in _ACTIONS:
            near = difflib.get_close_matches(str(action), _ACTIONS, n=1)
            raise arguments.invalid(
                "drift",
                f"has {action!r} for {name!r}; known are {', '.join(_ACTIONS)}",
                f"did you mean {near[0]!r}?" if near else 'write drift={"*": "evolve", "amount": "fail"}',
            )
    if schema is None:
        raise arguments.invalid(
            "drift", "works with JSON records that have a schema", 'set format="json" and a schema'
        )
    drift = Drift(actions.get(EVERY_COLUMN), {k: v for k, v in actions.items() if k != EVERY_COLUMN})
    if drift.has("rescue") and RESCUED in schema.fieldNames():
        raise arguments.invalid("drift", f"adds the column {RESCUED}, which the schema has too")
    return drift


def evolving_schema(
    active: ActivePipeline, arguments: Arguments, source: str, declared: StructType | None, drift: Drift
) -> Evolving | None:
    """The schema of a read that takes up new fields; ``None`` if it does not.

    Raises:
        ArgumentInvalidError: The call is not within a query function, so it cannot be made again.
    """
    from pyspark.sql.types import StructType as Struct

    from headrace.contracts.evolution import evolve
    from headrace.sources.new_fields import Evolving

    if declared is None or not drift.has("evolve"):
        return None
    if active.registry is not None:
        raise arguments.invalid("drift", '"evolve" works within the function of a table or a view only')
    versions = SchemaVersions(active.settings.storage.schemas, f"{running_query()} {source}")
    newest = versions.newest()
    if newest is None:
        return Evolving(versions=versions, number=0, schema=declared, drift=drift)
    found = evolve(declared.jsonValue(), newest.schema, drift)
    schema = Struct.fromJson(dict(found.schema))
    return Evolving(versions=versions, number=newest.number, schema=schema, drift=drift)
