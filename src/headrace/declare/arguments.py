"""Checks of the arguments that users pass to decorators and readers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from headrace.declare.registry import ActivePipeline, current_pipeline
from headrace.errors import (
    ArgumentInvalidError,
    FormatUnsupportedError,
    HeadraceError,
    SourceLocation,
    nearest,
)
from headrace.model.declarations import (
    EVERY_COLUMN,
    INTERVAL_SETTING,
    RESCUED,
    Drift,
    DriftAction,
    RefreshPolicy,
    RejectionLimit,
    Trigger,
)
from headrace.model.names import TableName, names_in_use
from headrace.model.queries import running_query
from headrace.runtime.lazy_pyspark import StructType, T
from headrace.sources.schemas import SchemaFile, read_schema
from headrace.state.kept_schemas import SchemaVersions
from headrace.syntax.bindings import required_parameters
from headrace.syntax.locations import argument_location, called_name, caller, function_location

if TYPE_CHECKING:
    from headrace.sources.bad_records import Evolving


_PART = re.compile(r"[A-Za-z0-9_]{1,200}")
_FLOW = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Arguments:
    """Checks the arguments of one call at one source location."""

    call: str
    location: SourceLocation

    def invalid(
        self, argument: str, problem: str, *remedies: str, texts: Sequence[str] = ()
    ) -> ArgumentInvalidError:
        """The error for an argument; ``texts`` are strings in it to point at."""
        return ArgumentInvalidError(
            f"{self.call}: {argument} {problem}",
            location=argument_location(self.location, argument.partition(" ")[0], *texts),
            remedies=remedies,
            params={"call": self.call, "argument": argument},
        )

    @contextmanager
    def located(self) -> Iterator[None]:
        """Give the errors of the code within the location of this call."""
        try:
            yield
        except HeadraceError as error:
            raise error.with_location(self.location) from error.__cause__

    def text(self, argument: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self.invalid(argument, f"must be text, not {_kind(value)}")
        return value

    def optional_text(self, argument: str, value: Any) -> str | None:
        return None if value is None else self.text(argument, value)

    def settings(self, argument: str, value: Any) -> Mapping[str, str]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.invalid(argument, f"must be a dict of text to text, not {_kind(value)}")
        for key, item in value.items():
            if not isinstance(key, str):
                raise self.invalid(argument, f"has a key that is not text: {key!r}")
            if not isinstance(item, str):
                shown = str(item).lower() if isinstance(item, bool) else str(item)
                raise self.invalid(
                    argument,
                    f"sets `{key}` to {_kind(item)}; it must be text",
                    f'write "{key}": "{shown}"',
                    texts=[key],
                )
        return dict(value)

    def flag(self, argument: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.invalid(argument, f"must be True or False, not {value!r}")
        return value

    def positive(self, argument: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.invalid(argument, f"must be a whole number above 0, not {value!r}")
        return value

    def one_of(self, argument: str, value: Any, *known: str) -> None:
        if value not in known:
            raise self.invalid(argument, f"must be {' or '.join(known)}, not {value!r}")

    def flow_trigger(self, value: Any, spark_conf: Mapping[str, str], *, once: Any = False) -> Trigger | None:
        """A flow's trigger: the argument, else the interval setting of Spark's own pipelines."""
        argument = "trigger"
        if self.flag("once", once) and value is not None:
            raise self.invalid("trigger", "cannot be used with once=True: the flow has one batch")
        if once:
            return Trigger(available_now=True)
        if value is None:
            if (value := spark_conf.get(INTERVAL_SETTING)) is None:
                return None
            argument = f"spark_conf `{INTERVAL_SETTING}`"
        try:
            return Trigger.parse(value)
        except ValueError as error:
            raise self.invalid(argument, str(error)) from None

    def view_trigger(self, value: Any, spark_conf: Mapping[str, str]) -> Trigger | None:
        """The minimum time between two refreshes of a view."""
        trigger = self.flow_trigger(value, spark_conf)
        if trigger is not None and trigger.available_now:
            raise self.invalid(
                "trigger", "of a view is the minimum time between two refreshes, such as `1 minute`"
            )
        return trigger

    def refresh_policy(self, value: Any) -> RefreshPolicy:
        known: dict[str, RefreshPolicy] = {one.replace(" ", "_"): one for one in get_args(RefreshPolicy)}
        given = "auto" if value is None else value
        if isinstance(given, str):
            given = given.lower().replace(" ", "_")
        self.one_of("refresh_policy", given, *known)
        return known[given]

    def rejection_limit(self, value: Any) -> RejectionLimit | None:
        try:
            return None if value is None else RejectionLimit.parse(value)
        except ValueError as error:
            raise self.invalid("max_rejected", str(error)) from None

    def columns(self, argument: str, value: Any) -> tuple[str, ...]:
        if value is None:
            return ()
        if isinstance(value, str):
            raise self.invalid(
                argument, "must be a list of column names, not text", f'write {argument}=["{value}"]'
            )
        if not isinstance(value, Sequence) or not all(isinstance(item, str) and item for item in value):
            problem = f"must be a list of column names, not {value!r}"
            raise self.invalid(argument, problem, f'write {argument}=["id"]')
        return tuple(value)

    def schema(self, value: Any, root: Path | None) -> Any | None:
        """A DDL string, a ``StructType``, or the contents of a schema file; imports no pyspark."""
        if value is None or isinstance(value, SchemaFile):
            return value
        if hasattr(value, "jsonValue") and hasattr(value, "fields"):
            return value
        if isinstance(value, Path):
            value = str(value)
        if isinstance(value, str) and value.strip():
            return read_schema(value, root or Path(), self.location)
        raise self.invalid(
            "schema",
            f"must be a DDL string, a StructType or a file, not {_kind(value)}",
            'write schema="id LONG, name STRING", or schema="schemas/orders.ddl"',
        )

    def delta(self, value: Any) -> str | None:
        name = self.optional_text("format", value)
        if name is None or name.lower() == "delta":
            return None if name is None else "delta"
        raise FormatUnsupportedError(
            f"{self.call}: format `{name}` is not Delta",
            location=argument_location(self.location, "format"),
            remedies=["remove the format argument: the tables of a pipeline are Delta tables"],
            params={"call": self.call, "format": name},
        )

    def layout(self, partition_cols: Any, cluster_by: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        partitions, clusters = (
            self.columns("partition_cols", partition_cols),
            self.columns("cluster_by", cluster_by),
        )
        if partitions and clusters:
            is_sql = self.call.startswith("CREATE ")
            first, other = ("CLUSTER BY", "PARTITIONED BY") if is_sql else ("cluster_by", "partition_cols")
            raise self.invalid(first, f"cannot be used together with {other}", f"keep {first} or {other}")
        return partitions, clusters

    def table_name(self, argument: str, value: Any, default_schema: str) -> TableName:
        """A table name of one to three parts, each of letters, digits and underscores."""
        name = self.text(argument, value)
        parts = names_in_use().qualified(tuple(part.strip("`") for part in name.split(".")))
        if not 1 <= len(parts) <= 3:
            raise self.invalid(argument, f"`{name}` has {len(parts)} parts; a name has one to three")
        for part in parts:
            if not _PART.fullmatch(part):
                raise self.invalid(
                    argument,
                    f"`{name}` is not a valid name: a part has letters a-z, digits and _ only",
                    *(["give the table a name with name=.."] if part == "<lambda>" else []),
                )
        active = current_pipeline()
        return TableName.of_parts(parts, default_schema, active.settings.catalog if active else None)

    def flow_name(self, value: Any) -> str:
        name = self.text("name", value)
        if not _FLOW.fullmatch(name):
            raise self.invalid(
                "name", f"`{name}` is not a valid flow name: letters a-z, digits, _ - and . only"
            )
        return name

    def decorated(self, value: Any) -> None:
        """Check that a decorator that changes nothing has got a function."""
        if not callable(value):
            raise self.invalid(
                "the decorator",
                f"must be put on a function, not on {_kind(value)}",
                "put it below the decorator that declares the dataset"
                if value is None
                else "put it on the query function",
            )

    def query(self, value: Any) -> Callable[[], Any]:
        """The value as a function that can be called without arguments."""
        if isinstance(value, str):
            raise self.invalid("name", "must be a keyword argument", f'write {self.call}(name="{value}")')
        if not callable(value):
            raise self.invalid("function", f"must be a function that returns a DataFrame, not {_kind(value)}")
        if inspect.iscoroutinefunction(value) or inspect.isgeneratorfunction(value):
            raise self.invalid("function", "must return a DataFrame; it is async or a generator")
        if needed := required_parameters(value):
            raise self.invalid(
                "function",
                f"`{value.__name__}` gets no value for {', '.join(needed)}",
                f'remove it, or give it a default: def {value.__name__}({needed[0]}="VALUE")',
            )
        return value  # type: ignore[no-any-return]


def arguments_of(call: str, function: Any = None) -> Arguments:
    """The checks of a call, with the source location of the decorated function or of the user's line.

    Messages name the function as the file writes it: ``dlt.apply_changes``.
    """
    active = current_pipeline()
    root = active.settings.root if active else None
    location = (function_location(function, root) if function is not None else None) or caller(root)
    return Arguments(called_name(call) if call.startswith(("hr.", "@hr.", "dp.", "@dp.")) else call, location)


def _kind(value: Any) -> str:
    """The type of a value, as messages name it."""
    match value:
        case None:
            return "None"
        case bool():
            return f"{value} (a bool)"
        case int() | float():
            return f"{value} (a number)"
        case str():
            return "text"
        case _:
            return f"a {type(value).__name__}"


def checked_care(arguments: Arguments, given: Any) -> Mapping[str, Any]:
    """The policy of a declaration, by the names of `headrace.model.maintenance.TablePolicy`."""
    from pydantic import ValidationError

    from headrace.declare.spec_model import TableCareSpec

    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise arguments.invalid("maintenance", "must be a dict, such as {'small_files': 100}")
    known = list(TableCareSpec.model_fields)
    for key in given:
        if key not in known:
            near = nearest(key, known)
            remedy = f"did you mean `{near}`?" if near else f"the keys are: {', '.join(known)}"
            raise arguments.invalid("maintenance", f"has an unknown key `{key}`", remedy, texts=[key])
    try:
        return TableCareSpec.model_validate(dict(given)).values
    except ValidationError as error:
        first = error.errors()[0]
        problem = first.get("ctx", {}).get("error") or first["msg"][:1].lower() + first["msg"][1:]
        raise arguments.invalid("maintenance", f"`{first['loc'][0]}`: {problem}") from None


_ACTIONS = get_args(DriftAction)


def parse_drift(arguments: Arguments, value: Any, schema: StructType | None) -> Drift:
    """The actions of an argument `drift`: one for all fields, or a dict by the name of the field."""
    if value is None:
        return Drift()
    actions = value if isinstance(value, Mapping) else {EVERY_COLUMN: value}
    for name, action in actions.items():
        if not isinstance(name, str) or action not in _ACTIONS:
            near = nearest(str(action), _ACTIONS)
            raise arguments.invalid(
                "drift",
                f"has {action!r} for {name!r}; known are {', '.join(_ACTIONS)}",
                f"did you mean {near!r}?" if near else 'write drift={"*": "evolve", "amount": "fail"}',
            )
    if schema is None:
        raise arguments.invalid(
            "drift",
            "works with JSON records and CSV files with a header, if they have a schema",
            'set format="json" and a schema',
        )
    drift = Drift(actions.get(EVERY_COLUMN), {k: v for k, v in actions.items() if k != EVERY_COLUMN})
    if drift.has("rescue") and RESCUED in schema.fieldNames():
        raise arguments.invalid("drift", f"adds the column {RESCUED}, which the schema has too")
    return drift


def evolving_schema(
    active: ActivePipeline, arguments: Arguments, source: str, declared: StructType | None, drift: Drift
) -> Evolving | None:
    """The schema of a read that takes up new fields; ``None`` if it does not."""
    from headrace.contracts.evolution import evolve
    from headrace.sources.bad_records import Evolving

    if declared is None or not drift.has("evolve"):
        return None
    if active.registry is not None:
        raise arguments.invalid("drift", '"evolve" works within the function of a table or a view only')
    versions = SchemaVersions(active.settings.storage.schemas, f"{running_query()} {source}")
    newest = versions.newest()
    if newest is None:
        return Evolving(versions=versions, number=0, schema=declared, drift=drift)
    found = evolve(declared.jsonValue(), newest.schema, drift)
    schema = T.StructType.fromJson(dict(found.schema))
    return Evolving(versions=versions, number=newest.number, schema=schema, drift=drift)
