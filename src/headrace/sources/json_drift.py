"""JSON records that differ from their schema: fields that it does not have, and values of other types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.model.drift import RESCUED, Drift, DriftAction
from headrace.sources.decoders import DRIFTED, UNPARSEABLE, JsonDecoder

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

_WRONG = "_headrace_wrong"
_UNKNOWN = "unknown"
_SAMPLE = 16
_PERMISSIVE = {"mode": "PERMISSIVE"}


@dataclass(frozen=True)
class DriftingJsonDecoder(JsonDecoder):
    """JSON whose records may differ from the schema.

    With ``rescue`` the struct has one more field, `RESCUED`.

    Args:
        drift: What to do with a field that the schema does not have, and with a value of another type.
    """

    drift: Drift = field(default_factory=Drift)

    def unknown(self, value: Column) -> Column:
        """The names of the fields that the schema does not have, as an array; dotted below the top level.

        Fields without a value are left out, and objects within arrays and maps are not looked at. Without
        any action for drift, one record of `_SAMPLE` is looked at.
        """
        from pyspark.sql import functions as F

        names = F.concat(*self._unknown(value.cast("string"), self.schema, ()))
        if not self.drift.is_default:
            return names
        return F.when(F.crc32(value.cast("binary")) % _SAMPLE == 0, names).otherwise(_no_names())

    def _unknown(self, json: Column, schema: StructType, path: tuple[str, ...]) -> Iterator[Column]:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        known = F.array(*(F.lit(one.name) for one in schema.fields)).cast("array<string>")
        found = F.coalesce(F.array_except(F.json_object_keys(json), known), _no_names())
        values = F.from_json(json, "map<string, string>", _PERMISSIVE)
        valued = F.map_keys(F.map_filter(values, lambda _, value: value.isNotNull()))
        found = F.when(F.size(found) > 0, F.array_intersect(found, valued)).otherwise(_no_names())
        prefix = "".join(f"{name}." for name in path)
        yield F.transform(found, lambda name: F.concat(F.lit(prefix), name)) if path else found
        for one in schema.fields:
            if isinstance(one.dataType, StructType) and not set(one.name) & set("'\\"):
                inner = F.get_json_object(json, f"$['{one.name}']")
                yield from self._unknown(inner, one.dataType, (*path, one.name))

    def problem(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        if not (self.drift.has("quarantine") or self.drift.has("fail")):
            return super().problem(value)
        drifted = F.size(self._having(self.unknown(value), "quarantine", "fail")) > 0
        known = super().problem(value)
        return F.when((known == F.lit(UNPARSEABLE)) & drifted, F.lit(DRIFTED)).otherwise(known)

    def stops(self, value: Column) -> Column | None:
        from pyspark.sql import functions as F

        if not self.drift.has("fail"):
            return None
        text = value.cast("string")
        names = self._having(F.concat(self.unknown(text), self._wrong(text)), "fail")
        return F.json_object_keys(text).isNotNull() & (F.size(names) > 0)

    def _looks(self, text: Column) -> tuple[Column, ...]:
        named = any(self.drift.has(action) for action in ("rescue", "quarantine", "fail"))
        return (self.unknown(text).alias(_UNKNOWN),) if named else ()

    def _accept(self, record: Column, mistyped: Column, text: Column, looked: Column) -> Column:
        from pyspark.sql import functions as F

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
        from pyspark.sql import functions as F

        drift = self.drift
        named = F.array(*(F.lit(name) for name, action in drift.columns.items() if (action in actions))).cast(
            "array<string>"
        )
        if drift.default in actions:
            others = [name for name, action in drift.columns.items() if action not in actions]
            return F.array_except(names, F.array(*map(F.lit, others)).cast("array<string>"))
        return F.array_intersect(names, named)

    def _wrong(self, text: Column) -> Column:
        """The names of the columns whose values have another type; computed for such records only."""
        from pyspark.sql import functions as F

        names = [F.when(self._is_wrong(text, one), F.lit(one.name)) for one in self.schema.fields]
        return F.filter(F.array(*names), lambda name: name.isNotNull())

    def _is_wrong(self, text: Column, column: StructField) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructType

        alone = StructType([column]).add(_WRONG, StringType())
        options = {**self.parser_options, "columnNameOfCorruptRecord": _WRONG}
        return F.from_json(text, alone, options)[_WRONG].isNotNull()

    def _rescued(self, text: Column, names: Column) -> Column:
        """The fields with some names, as JSON, each with its whole value; NULL if there are none."""
        from pyspark.sql import functions as F

        def is_kept(name: Column, _: Column) -> Column:
            inner = F.exists(names, lambda one: F.startswith(one, F.concat(name, F.lit("."))))
            return F.array_contains(names, name) | inner

        def kept(values: Column) -> Column:
            return F.map_filter(values, is_kept)

        # A VARIANT keeps the type of each value. It cannot hold an object that has a name twice.
        typed = F.to_json(kept(F.from_json(text, "map<string, variant>", _PERMISSIVE)))
        plain = F.to_json(kept(F.from_json(text, "map<string, string>", _PERMISSIVE)))
        return F.when(F.size(names) > 0, F.coalesce(typed, plain))


def _no_names() -> Column:
    from pyspark.sql import functions as F

    return F.array().cast("array<string>")
