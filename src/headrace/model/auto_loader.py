"""The options of Auto Loader (`cloudFiles`): what they mean here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from headrace.model.declarations import RESCUED

EvolutionMode = Literal["addnewcolumns", "rescue", "failonnewcolumns", "none"]

MODES: tuple[EvolutionMode, ...] = get_args(EvolutionMode)
_PREFIX = "cloudfiles."
_PART = r"(?:`[^`]+`|[\w-]+)"
_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_CLOUD = """
    schemalocation usenotifications useincrementallisting usemanagedfileevents backfillinterval listonstart
    queueurl queuename region fetchparallelism pathrewrites subscriptionid tenantid clientid clientsecret
    connectionstring resourcegroup projectid subscription client clientemail privatekey privatekeyid
    awsaccesskey awssecretkey rolearn roleexternalid rolesessionname stsendpoint validateoptions
    usestrictglobber maxfileage badrecordspath cleansource.retentionduration cleansource.movedestination
"""
_NO_EFFECT = frozenset(_CLOUD.split())
"""Options of clouds and queues, and of what the storage of a pipeline does."""
_OFF = {
    "allowoverwrites": ("false", "a file that was read and has changed is not read again"),
    "includeexistingfiles": ("true", "the files that exist at the first run are read"),
    "cleansource": ("off", "files that were read stay where they are"),
    "readercasesensitive": ("true", "names of fields are compared with their letter case"),
}
"""Options with the only supported value, and its meaning."""
_UNSUPPORTED = {"singlevariantcolumn": "a record becomes columns"}


@dataclass(eq=False)
class AutoLoaderError(ValueError):
    option: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, kw_only=True)
class AutoLoader:
    format: str | None  # the format of the files; ``None`` if it is to be found out
    infers_types: bool = False  # whether types are inferred; else columns are strings
    hints: str | None = None  # names and types of columns, as DDL
    rescued: str | None = None  # the column with the data that has no column; ``None`` if there is none
    mode: EvolutionMode = "none"
    partitions: tuple[str, ...] | None = None  # the columns of folders named `key=value`; `None` finds them
    recursive: bool = False  # whether folders below are read, and their names are not columns
    glob: str | None = None
    limits: Mapping[str, str] = field(default_factory=dict)  # spark's options for the size of a batch
    options: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # the names of options that have no effect here


def parse_options(options: Mapping[str, str], *, has_schema: bool, infers_types: bool = False) -> AutoLoader:
    """The read behind the options of a reader. `options`: the options, with and without the prefix
    ``cloudFiles.``, in any letter case. `infers_types`: whether types are inferred if the options do not say
    it."""
    names = {name.lower().removeprefix(_PREFIX): name for name in options}
    values = {key: options[name] for key, name in names.items()}
    unused = [names[key] for key in values if key in _NO_EFFECT or key.startswith("resourcetag.")]
    unused += [names[key] for key in values if key.startswith("databricks.")]
    if names.get("inferschema", "").lower().startswith(_PREFIX):
        # No option of Auto Loader; pipelines have it beside inferColumnTypes.
        unused.append(names["inferschema"])
    for key, (supported, meaning) in _OFF.items():
        value = values.get(key, supported)
        if value.lower() != supported:
            raise AutoLoaderError(names[key], f"{value} is not supported: {meaning}", f"remove {names[key]}")
    for key, meaning in _UNSUPPORTED.items():
        if key in values:
            raise AutoLoaderError(names[key], f"is not supported: {meaning}", f"remove {names[key]}")
    if values.get("mode", "").upper() == "PERMISSIVE":
        unused.append(names["mode"])
    mode = _mode(values, names, has_schema)
    partitions = values.get("partitioncolumns")
    columns = None if partitions is None else tuple(filter(None, re.split(r"\s*,\s*", partitions.strip())))
    own = {"format", "infercolumntypes", "schemahints", "rescueddatacolumn", "schemaevolutionmode", "path"}
    own |= {"partitioncolumns", "recursivefilelookup", "pathglobfilter", "filenamepattern", *_OFF, *_LIMITS}
    kept = {
        name: options[name]
        for key, name in names.items()
        if key not in own and name not in unused and not name.lower().startswith("headrace.")
    }
    return AutoLoader(
        format=values.get("format", "").lower() or None,
        infers_types=_flag(values, "infercolumntypes", infers_types),
        hints=values.get("schemahints"),
        rescued=values.get("rescueddatacolumn") or (None if has_schema else RESCUED),
        mode=mode,
        partitions=columns,
        recursive=_flag(values, "recursivefilelookup", False),
        glob=values.get("pathglobfilter") or values.get("filenamepattern"),
        limits=_limits(values, names),
        options=kept,
        unused=tuple(unused),
    )


_LIMITS = {"maxfilespertrigger": "maxFilesPerTrigger", "maxbytespertrigger": "maxBytesPerTrigger"}


def _limits(values: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Spark's options for the size of a batch: that of files, if there are both."""
    for key, option in _LIMITS.items():
        if (value := values.get(key)) is None:
            continue
        found = re.fullmatch(r"(\d+)\s*([bkmgt]?)b?", value.strip().lower())
        size = int(found[1]) << _UNITS[found[2]] if found else 0
        if size < 1:
            raise AutoLoaderError(
                names[key], f"must be a number above 0, not {value!r}", "write such as 1000"
            )
        return {option: str(size)}
    return {}


def _mode(values: Mapping[str, str], names: Mapping[str, str], has_schema: bool) -> EvolutionMode:
    given = values.get("schemaevolutionmode")
    if given is None:
        return "none" if has_schema else "addnewcolumns"
    name = names["schemaevolutionmode"]
    mode = next((one for one in MODES if one == given.lower()), None)
    if mode is None:
        known = "addNewColumns, rescue, failOnNewColumns and none"
        raise AutoLoaderError(name, f"{given} is not supported; known are {known}", "write one of these")
    if mode == "addnewcolumns" and has_schema:
        remedy = "give the types as cloudFiles.schemaHints, not as a schema"
        raise AutoLoaderError(name, f"{given} does not work with a schema", remedy)
    return mode


def _flag(values: Mapping[str, str], key: str, default: bool) -> bool:
    return values.get(key, str(default)).lower() == "true"


def split_hints(hints: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """The columns of schema hints, each as the parts of its name and its type."""
    found = []
    for text in re.findall(r"(?:`[^`]*`|<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>|\([^()]*\)|[^,`<(])+", hints):
        named = re.match(
            r"\s*((?:`[^`]+`|[\w-]+)(?:\.(?:`[^`]+`|[\w-]+))*)\s*:?\s+(.+?)\s*$", text, re.DOTALL
        )
        if named is None:
            raise ValueError(text.strip())
        parts = re.findall(r"`([^`]+)`|([\w-]+)", named[1])
        found.append((tuple(quoted or plain for quoted, plain in parts), named[2]))
    return tuple(found)
