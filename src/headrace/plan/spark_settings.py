"""Settings of Spark and Delta that a pipeline may not have.

Misspelt ones, since Spark accepts any name and ignores those that it does not know, and those that take away
what the proof needs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, OptionUnknownError, OptionUnsupportedError
from headrace.model.declarations import Declarations, MaterializedView, StreamingTable
from headrace.model.project import ProjectSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FAMILIES = ("spark.sql.", "spark.databricks.delta.")
"""Prefixes of which Spark and Delta list all names."""
_OPEN = ("spark.sql.catalog.", "spark.databricks.delta.properties.defaults.")
"""Prefixes within them under which users choose the names."""
_ALIKE = 0.95
"""How similar to a known name an unknown one must be, by `difflib`, to count as misspelt: some settings are
on no list, such as those of RocksDB."""
_STATISTICS = "spark.databricks.delta.stats.collect"


def find_wrong_settings(
    spark: SparkSession, settings: ProjectSettings, declarations: Declarations
) -> Iterator[HeadraceError]:
    """The wrong settings of a pipeline and of its queries."""
    places = settings.configuration_locations
    given = [(key, value, settings.name, places.get(key)) for key, value in settings.configuration.items()]
    for declared in (*declarations.datasets, *declarations.flows):
        if not isinstance(declared, StreamingTable | MaterializedView):
            held = declared.spark_conf.items()
            given += [(key, value, str(declared.name), declared.location) for key, value in held]
    listed = [one for one in given if one[0].startswith(_FAMILIES) and not one[0].startswith(_OPEN)]
    if not listed:
        return
    jvm: Any = spark._jvm
    entries = _entries(jvm)
    for key, value, name, location in listed:
        if key == _STATISTICS and str(value).strip().lower() == "false":
            yield OptionUnsupportedError(
                f"`{key}` is false",
                location=location,
                facts=("`headrace verify` proves the rows of a batch by the statistics of its files",),
                remedies=("remove the setting",),
                params={"name": name, "option": key, "value": str(value)},
            )
        if entries.findEntry(key) is not None:
            continue
        known = [entry.key() for entry in jvm.java.util.ArrayList(entries.listAllEntries())]
        if near := difflib.get_close_matches(key, known, n=1, cutoff=_ALIKE):
            yield OptionUnknownError(
                f"Unknown Spark setting `{key}`",
                location=location,
                remedies=(f"did you mean `{near[0]}`?",),
                params={"name": name, "setting": key, "suggestion": near[0]},
            )


def _entries(jvm: Any) -> Any:
    # Delta's settings are on the list once its class has been loaded.
    getattr(getattr(jvm.org.apache.spark.sql.delta.sources, "DeltaSQLConf$"), "MODULE$")
    return jvm.org.apache.spark.internal.config.ConfigEntry
