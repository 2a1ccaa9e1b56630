"""Expectations on the rows of a dataset, under the names that Lakeflow gives them.

A decorator may be above or below the one that declares the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.contracts.expectations import text_of_column
from headrace.declare.arguments import Arguments, arguments_of
from headrace.declare.registry import current_pipeline
from headrace.model.declarations import Action, DatasetCheck, Expectation, NullRule
from headrace.model.texts import parse_seconds
from headrace.runtime.lazy_pyspark import Column

QueryT = TypeVar("QueryT", bound=Callable[[], Any])
Conditions = Mapping[str, "str | Column"]


def expect(
    name: str, condition: str | Column, *, nulls: NullRule | None = None
) -> Callable[[QueryT], QueryT]:
    """Count the rows for which a condition is false; they are kept.

    Args:
        name: The expectation's name, unique in the dataset; it may have spaces.
        condition: SQL text or a Column over the dataset's columns.
        nulls: Whether a row for which the condition is NULL passes (``"pass"``) or fails (``"fail"``); by
            default as ``expectations.nulls`` in ``headrace.yml`` says, else it passes.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... @hr.expect("amount is positive", "amount > 0")
        ... def orders():
        ...     return hr.read_kafka("orders", format="json", schema="id LONG, amount DOUBLE")
    """
    return _decorate("hr.expect", "warn", {name: condition}, nulls)


def expect_or_drop(
    name: str, condition: str | Column, *, nulls: NullRule | None = None
) -> Callable[[QueryT], QueryT]:
    """Drop the rows for which a condition is false, and count them. Arguments as in `expect`."""
    return _decorate("hr.expect_or_drop", "drop", {name: condition}, nulls)


def expect_or_quarantine(
    name: str, condition: str | Column, *, nulls: NullRule | None = None
) -> Callable[[QueryT], QueryT]:
    """Move the rows for which a condition is false to the quarantine table. Arguments as in `expect`."""
    return _decorate("hr.expect_or_quarantine", "quarantine", {name: condition}, nulls)


def expect_or_fail(
    name: str, condition: str | Column, *, nulls: NullRule | None = None
) -> Callable[[QueryT], QueryT]:
    """Stop the flow at the first batch with a row for which a condition is false; nothing of the batch is
    written. Arguments as in `expect`."""
    return _decorate("hr.expect_or_fail", "fail", {name: condition}, nulls)


def expect_all(expectations: Conditions, *, nulls: NullRule | None = None) -> Callable[[QueryT], QueryT]:
    """Several expectations, as `expect` declares one.

    Args:
        expectations: The conditions by name.
        nulls: As in `expect`.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... @hr.expect_all({"has an id": "id IS NOT NULL", "amount is positive": "amount > 0"})
        ... def orders():
        ...     return hr.read_kafka("orders", format="json", schema="id LONG, amount DOUBLE")
    """
    return _decorate("hr.expect_all", "warn", expectations, nulls)


def expect_all_or_drop(
    expectations: Conditions, *, nulls: NullRule | None = None
) -> Callable[[QueryT], QueryT]:
    """Several expectations, as `expect_or_drop` declares one."""
    return _decorate("hr.expect_all_or_drop", "drop", expectations, nulls)


def expect_all_or_quarantine(
    expectations: Conditions, *, nulls: NullRule | None = None
) -> Callable[[QueryT], QueryT]:
    """Several expectations, as `expect_or_quarantine` declares one."""
    return _decorate("hr.expect_all_or_quarantine", "quarantine", expectations, nulls)


def expect_all_or_fail(
    expectations: Conditions, *, nulls: NullRule | None = None
) -> Callable[[QueryT], QueryT]:
    """Several expectations, as `expect_or_fail` declares one."""
    return _decorate("hr.expect_all_or_fail", "fail", expectations, nulls)


@dataclass(frozen=True)
class DeclaredCheck:
    """A check of a whole dataset: a decorator, and an item of ``checks`` of `create_streaming_table`."""

    _arguments: Arguments
    _check: DatasetCheck

    def __call__(self, function: QueryT) -> QueryT:
        return _decorator(self._arguments, (self._check,))(function)


def expect_unique(keys: str | Sequence[str], *, fail: bool = False) -> DeclaredCheck:
    """Check after each batch or refresh that no two rows of the dataset have equal keys.

    Reads the key columns of the whole dataset.

    Args:
        keys: One or more columns. Rows with a NULL among them are not compared.
        fail: Whether the flow stops; by default the check only warns.

    Example:
        >>> import headrace as hr
        >>> @hr.materialized_view
        ... @hr.expect_unique(["customer", "day"])
        ... def revenue():
        ...     return spark.read.table("orders").groupBy("customer", "day").sum("amount")
    """
    arguments = arguments_of("hr.expect_unique")
    columns = (keys,) if isinstance(keys, str) else arguments.columns("keys", keys)
    if not columns:
        raise arguments.invalid("keys", "must name at least one column")
    return _declared_check(arguments, kind="unique", columns=columns, fails=fail)


def expect_row_count(*, like: str, fail: bool = False) -> DeclaredCheck:
    """Check after each batch or refresh that the dataset has as many rows as another one has then.

    Reads the statistics of both, or counts their rows where these are missing.

    Args:
        like: The name of another table or materialized view of the pipeline.
        fail: Whether the flow stops; by default the check only warns.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... @hr.expect_row_count(like="orders")
        ... def enriched():
        ...     return spark.readStream.table("orders").withColumn("year", F.year("at"))
    """
    arguments = arguments_of("hr.expect_row_count")
    return _declared_check(arguments, kind="row_count", like=arguments.text("like", like), fails=fail)


def expect_fresh(column: str, *, within: str | float, fail: bool = False) -> DeclaredCheck:
    """Check after each batch or refresh that the newest value of a column is recent.

    Reads the column of the whole dataset.

    Args:
        column: A column with timestamps or dates.
        within: The maximum age of the newest value, such as ``"1 hour"``.
        fail: Whether the flow stops; by default the check only warns.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... @hr.expect_fresh("at", within="15 minutes")
        ... def orders():
        ...     return hr.read_kafka("orders", format="json", schema="id LONG, at TIMESTAMP")
    """
    arguments = arguments_of("hr.expect_fresh")
    try:
        within_s = parse_seconds(within)
    except ValueError as error:
        raise arguments.invalid("within", str(error)) from error
    columns = (arguments.text("column", column),)
    return _declared_check(arguments, kind="fresh", columns=columns, within_s=within_s, fails=fail)


def declared_checks(arguments: Arguments, given: Any) -> tuple[DatasetCheck, ...]:
    """The checks of a declaration without a function; ``given`` is its argument ``checks``."""
    if not isinstance(given, Sequence) or not all(isinstance(one, DeclaredCheck) for one in given):
        raise arguments.invalid(
            "checks", "must be a list of checks of the dataset", 'write checks=[hr.expect_unique("id")]'
        )
    return tuple(one._check for one in given)


def _declared_check(arguments: Arguments, *, fails: Any, **facts: Any) -> DeclaredCheck:
    check = DatasetCheck(fails=arguments.flag("fail", fails), location=arguments.location, **facts)
    return DeclaredCheck(arguments, check)


def _decorate(call: str, action: Action, conditions: Any, nulls: Any) -> Callable[[QueryT], QueryT]:
    arguments = arguments_of(call)
    return _decorator(arguments, build_expectations(arguments, "expectations", action, conditions, nulls))


def _decorator(
    arguments: Arguments, found: tuple[Expectation | DatasetCheck, ...]
) -> Callable[[QueryT], QueryT]:
    active = current_pipeline()

    def decorator(function: QueryT) -> QueryT:
        arguments.decorated(function)
        if active is not None and active.registry is not None:
            active.registry.expect(function, found)
        return function

    return decorator


def build_expectations(
    arguments: Arguments, argument: str, action: Action, conditions: Any, nulls: Any = None
) -> tuple[Expectation, ...]:
    if not isinstance(conditions, Mapping):
        raise arguments.invalid(
            argument, "must be a dict of conditions by name", 'write {"amount is positive": "amount > 0"}'
        )
    if nulls not in (None, "pass", "fail"):
        raise arguments.invalid("nulls", f'must be "pass" or "fail", not {nulls!r}')
    return tuple(
        Expectation(
            name=_name(arguments, name),
            condition=(checked := _condition(arguments, name, condition)),
            text=_text(checked),
            action=action,
            location=arguments.location,
            nulls=nulls,
        )
        for name, condition in conditions.items()
    )


def _text(condition: Any) -> str:
    text = condition if isinstance(condition, str) else text_of_column(str(condition._jc.toString()))
    return " ".join(text.split())


def _name(arguments: Arguments, name: Any) -> str:
    text = arguments.text("name", name)
    if not text.strip() or len(text) > 255 or not text.isprintable():
        raise arguments.invalid("name", f"{text!r} is not a name of 1 to 255 printable characters")
    return text


def _condition(arguments: Arguments, name: str, condition: Any) -> Any:
    if hasattr(condition, "_jc"):
        return condition
    if not isinstance(condition, str) or not condition.strip():
        raise arguments.invalid(
            f"the condition of `{name}`", "must be SQL text or a Column", 'write it as in "amount > 0"'
        )
    return condition
