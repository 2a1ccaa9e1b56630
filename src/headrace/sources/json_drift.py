"""JSON records that differ from their schema: fields that it does not have, and values of other types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from headrace.model.declarations import RESCUED, Drift, DriftAction, field_name
from headrace.runtime.lazy_pyspark import Column, DataType, F, StructField, StructType, T
from headrace.sources.decoders import DRIFTED, UNPARSEABLE, DecimalReader, JsonDecoder

_WRONG = "_headrace_wrong"
_UNKNOWN = "unknown"
_SAMPLE = 16
_PERMISSIVE = {"mode": "PERMISSIVE"}


@dataclass(frozen=True)
class DriftingJsonDecoder(JsonDecoder):
    """JSON whose records may differ from the schema. With ``rescue`` the struct also has the field
    `RESCUED`."""

    # What to do with a field that the schema does not have, and with a value of another type
    drift: Drift = field(default_factory=Drift)

    def unknown(self, value: Column) -> Column:
        """The names of the fields that the schema does not have, as an array; dotted below the top level.

        Fields without a value are left out, and objects within maps are not looked at. Without any action for
        drift, one record of `_SAMPLE` is looked at.
        """
        names = F.concat(*self._unknown(value.cast("string"), self.schema, ()))
        if not self.drift.is_default:
            return names
        return F.when(F.crc32(value.cast("binary")) % _SAMPLE == 0, names).otherwise(_no_names())

    def _unknown(self, json: Column, schema: StructType, path: tuple[str, ...]) -> Iterator[Column]:
        known = F.array(*(F.lit(one.name) for one in schema.fields)).cast("array<string>")
        found = F.coalesce(F.array_except(F.json_object_keys(json), known), _no_names())
        values = F.from_json(json, "map<string, string>", _PERMISSIVE)
        valued = F.map_keys(F.map_filter(values, lambda _, value: value.isNotNull()))
        found = F.when(F.size(found) > 0, F.array_intersect(found, valued)).otherwise(_no_names())
        prefix = "".join(f"{name}." for name in path)
        yield F.transform(found, lambda name: F.concat(F.lit(prefix), _quoted(name)))
        for one in schema.fields:
            kind, within = one.dataType, (*path, field_name(one.name))
            if set(one.name) & set("'\\"):
                continue
            inner = F.get_json_object(json, f"$['{one.name}']")
            if isinstance(kind, T.StructType):
                yield from self._unknown(inner, kind, within)
            elif isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StructType):
                elements = F.from_json(inner, "array<string>", _PERMISSIVE)
                yield _names_within(elements, partial(self._unknown, schema=kind.elementType, path=within))

    def problem(self, value: Column) -> Column:
        if not (self.drift.has("quarantine") or self.drift.has("fail")):
            return super().problem(value)
        drifted = F.size(self._having(self.unknown(value), "quarantine", "fail")) > 0
        known = super().problem(value)
        return F.when((known == F.lit(UNPARSEABLE)) & drifted, F.lit(DRIFTED)).otherwise(known)

    def stops(self, value: Column) -> Column | None:
        if not self.drift.has("fail"):
            return None
        text = value.cast("string")
        names = self._having(F.concat(self.unknown(text), self._wrong(text)), "fail")
        return F.json_object_keys(text).isNotNull() & (F.size(names) > 0)

    def _looks(self, text: Column) -> tuple[Column, ...]:
        named = any(self.drift.has(action) for action in ("rescue", "quarantine", "fail"))
        return (self.unknown(text).alias(_UNKNOWN),) if named else ()

    def _accept(self, record: Column, mistyped: Column, text: Column, looked: Column) -> Column:
        if not self._looks(text):
            return F.when(~mistyped, record)
        unknown = looked[_UNKNOWN]
        accepted = F.size(self._having(unknown, "quarantine", "fail")) == 0
        if not self.drift.has("rescue"):
            return F.when(~mistyped & accepted, record)
        wrong = F.when(mistyped, self._wrong(text)).otherwise(_no_names())
        accepted &= F.size(wrong) == F.size(self._having(wrong, "rescue"))
        rescued = self._rescued(text, self._having(F.concat(unknown, wrong), "rescue"))
        fields = [record[one.name].alias(one.name) for one in self.schema.fields]
        return F.when(accepted, F.struct(*fields, rescued.alias(RESCUED)))

    def _having(self, names: Column, *actions: DriftAction) -> Column:
        """The names among some that have one of several actions."""
        drift = self.drift
        if any(_is_object(self.schema, name) for name in drift.columns):
            return F.filter(names, lambda name: F.coalesce(self._action(name).isin(*actions), F.lit(False)))
        is_taken = drift.default in actions
        other = [name for name, action in drift.columns.items() if (action in actions) != is_taken]
        forms = F.array(*(F.lit(form) for name in other for form in _forms(name))).cast("array<string>")
        return F.array_except(names, forms) if is_taken else F.array_intersect(names, forms)

    def _action(self, name: Column) -> Column:
        """The action for a field: its own, that of the innermost object around it, or the default."""
        columns = self.drift.columns
        action = F.lit(self.drift.default)
        for one in sorted((one for one in columns if _is_object(self.schema, one)), key=len):
            action = F.when(F.startswith(name, F.lit(f"{one}.")), F.lit(columns[one])).otherwise(action)
        for one, own in columns.items():
            action = F.when(name.isin(*_forms(one)), F.lit(own)).otherwise(action)
        return action

    def _wrong(self, text: Column) -> Column:
        """The names of the fields whose values have another type; computed for such records only."""
        return F.concat(
            *(self._wrong_in(text, one, field_name(one.name)) for one in self.schema.fields), _no_names()
        )

    def _wrong_in(self, text: Column, field: StructField, name: str) -> Column:
        """The names of the fields of another type within a field: the object itself, or fields of it."""
        own, kind = F.array(F.lit(name)), field.dataType
        if isinstance(kind, T.StructType) and not set(field.name) & set("'\\"):
            inner = F.get_json_object(text, f"$['{field.name}']")
            names = {one: f"{name}.{field_name(one.name)}" for one in kind.fields}
            within = F.concat(*(self._wrong_in(inner, one, its) for one, its in names.items()))
            is_object = F.json_object_keys(inner).isNotNull()
            own = F.when(is_object & (F.size(within) > 0), within).otherwise(own)
        return F.when(self._is_wrong(text, field), own).otherwise(_no_names())

    def _is_wrong(self, text: Column, column: StructField) -> Column:
        alone = DecimalReader(T.StructType([column]), "json")
        options = {**self.parser_options, "columnNameOfCorruptRecord": _WRONG}
        parsed = F.from_json(text, alone.parsed.add(_WRONG, T.StringType()), options)

        def is_wrong(record: Column, exact: Column | None) -> Column:
            return parsed[_WRONG].isNotNull() if exact is None else parsed[_WRONG].isNotNull() | ~exact

        return alone.read(parsed, is_wrong)

    def _rescued(self, text: Column, names: Column) -> Column:
        """The fields with some names, as JSON, each with its whole value; NULL if there are none."""

        def is_kept(name: Column, _: Column) -> Column:
            name = _quoted(name)
            inner = F.exists(names, lambda one: F.startswith(one, F.concat(name, F.lit("."))))
            return F.array_contains(names, name) | inner

        def kept(values: Column) -> Column:
            return F.map_filter(values, is_kept)

        # A VARIANT keeps the type of each value. It cannot hold an object that has a name twice.
        typed = F.to_json(kept(F.from_json(text, "map<string, variant>", _PERMISSIVE)))
        plain = F.to_json(kept(F.from_json(text, "map<string, string>", _PERMISSIVE)))
        return F.when(F.size(names) > 0, F.coalesce(typed, plain))


def _quoted(name: Column) -> Column:
    """A field within a dotted name; see `field_name`."""
    return F.when(F.contains(name, F.lit(".")), F.concat(F.lit("`"), name, F.lit("`"))).otherwise(name)


def _forms(name: str) -> tuple[str, ...]:
    """The names of fields that a key means: of a nested field, or of one whose name has a dot."""
    return (name, field_name(name)) if "." in name and "`" not in name else (name,)


def _is_object(schema: StructType, name: str) -> bool:
    """Whether a field, by its dotted name, has fields of its own."""

    def fields(kind: DataType) -> StructType | None:
        kind = kind.elementType if isinstance(kind, T.ArrayType) else kind
        return kind if isinstance(kind, T.StructType) else None

    found: StructType | None = schema
    for part in name.split("."):
        kinds = {} if found is None else {one.name: one.dataType for one in found.fields}
        found = fields(kinds[part]) if part in kinds else None
    return found is not None


def _names_within(elements: Column, names: Callable[[Column], Iterable[Column]]) -> Column:
    found = F.transform(elements, lambda one: F.concat(*names(one)))
    return F.coalesce(F.array_distinct(F.flatten(found)), _no_names())


def _no_names() -> Column:
    return F.array().cast("array<string>")
