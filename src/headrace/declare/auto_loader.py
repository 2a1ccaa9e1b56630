"""Auto Loader (`cloudFiles`) and `read_files` with the defaults of Databricks, read as folders of files."""

from __future__ import annotations

import glob as globbing
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from headrace.declare.arguments import Arguments, arguments_of, evolving_schema
from headrace.declare.reads import declared_schema, value_limit
from headrace.declare.registry import ActivePipeline, require_pipeline
from headrace.declare.stored_reads import folder_path, kept_schema
from headrace.model.declarations import RESCUED, Drift, DriftAction, field_name
from headrace.model.folders import FileFolder
from headrace.runtime.lazy_pyspark import DataFrame, DataType, F, StructType, T
from headrace.sources.requests import FormatRead

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


CLOUD_FILES = "cloudfiles"
READ_FILES = "headrace.read_files"  # an option with the name of the SQL function that reads

_FORMATS = {
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
    "tsv": "csv",
    "txt": "text",
    "parquet": "parquet",
    "avro": "avro",
    "orc": "orc",
}
"""The formats of files by the ends of their names."""
_CORRUPT = "_corrupt_record"
_TEXTS = ("json", "csv")  # formats that have no types of their own


def read_cloud_files(read: FormatRead) -> DataFrame:
    function = read.options.get(READ_FILES)
    arguments = arguments_of(function or 'spark.readStream.format("cloudFiles")')
    active = require_pipeline("cloudFiles")
    with arguments.located():
        if not read.streaming and function is None:
            raise arguments.invalid("format", "works with spark.readStream only", "write spark.readStream")
        try:
            loader = parse_options(
                read.options, has_schema=read.schema is not None, infers_types=function == "read_files"
            )
        except AutoLoaderError as error:
            raise arguments.invalid(error.option, error.problem, error.remedy) from error
        if loader.unused:
            names = ", ".join(f"`{name}`" for name in loader.unused)
            read.note(f"{arguments.call}: {names}: no effect here")
        return _Files(arguments, active, loader, read).frame()


@dataclass(frozen=True)
class _Files:
    arguments: Arguments
    active: ActivePipeline
    loader: AutoLoader
    read: FormatRead

    def frame(self) -> DataFrame:
        from headrace.sources.files import read as files
        from headrace.sources.files.headers import has_header
        from headrace.sources.files.options import check_options

        loader = self.loader
        folder = self._folder()
        format = loader.format or self._format(folder)
        files.check_format(format)
        given = declared_schema(self.arguments, self.read.schema)
        options = self._options(format, has_schema=given is not None)
        passes = self.read.options.get(READ_FILES) != "read_files"
        for name in check_options(self.arguments.call, format, options, passes_unknown=passes):
            del options[name]
            text = f"{format} files have no option `{name}`: it has no effect, here as on Databricks"
            self.read.note(f"{self.arguments.call}: {text}")
        if given is not None and set(folder.partition_columns()) - set(given.fieldNames()):
            folder = replace(folder, recursive=True)
        schema = None if given is None else _without(given, loader.rescued or RESCUED)
        if self.active.folders is not None:
            folder = self.active.folders(folder, format, schema, options, self.arguments.location)
        files.check_folder(folder)
        if schema is None and format != "text":
            schema = self._inferred(folder, format, options)
        if not self.read.streaming:
            return self._batch(folder, format, schema, options)
        is_lines = "multiline" not in {name.lower() for name, value in options.items() if value != "false"}
        rescues = (format == "json" and is_lines) or (format == "csv" and has_header(options))
        if not rescues:
            self._check_mode(format)
        drift = self._drift(schema, format) if schema is not None and rescues else Drift()
        evolving = evolving_schema(self.active, self.arguments, f"files {folder.path}", schema, drift)
        if evolving is not None and schema is not None and not loader.infers_types:
            evolving = replace(evolving, schema=_strings(evolving.schema, schema.fieldNames()))
        frame = files.read(
            self.active.session(),
            folder,
            format=format,  # type: ignore[arg-type]
            schema=schema if evolving is None else evolving.schema,
            limits=loader.limits,
            options=options,
            bad_records="quarantine" if self.active.quarantines else "stop",
            max_value_bytes=value_limit(self.active, self.arguments, None),
            drift=drift,
            evolving=evolving,
            notes_unknown=self.active.quarantines,
            found=self.active.bad_records,
        )
        return self._with_rescued(frame.drop("_source"), format)

    def _folder(self) -> FileFolder:
        if not self.read.path:
            raise self.arguments.invalid("path", "is missing", "write load(PATH)")
        loader = self.loader
        location = folder_path(self.active, self.arguments, self.read.path)
        recursive = loader.recursive or loader.partitions == ()
        folder = FileFolder(path=location.path, storage=location.files, recursive=recursive, glob=loader.glob)
        if location.name in location.parent.list_files():
            return replace(folder, path=location.parent.path, glob=globbing.escape(location.name))
        if folder.exists() and not folder.partition_columns():
            # Auto Loader reads all folders below; with partition columns, Spark does so too.
            return replace(folder, recursive=True)
        return folder

    def _format(self, folder: FileFolder) -> str:
        if self.read.options.get(READ_FILES) != "read_files":
            raise self.arguments.invalid(
                "cloudFiles.format", "is missing", 'write .option("cloudFiles.format", "json")'
            )
        names = sorted(file.path for file in folder.files()) if folder.exists() else []
        ends = [part for part in names[0].lower().split(".")[1:] if part in _FORMATS] if names else []
        if not ends:
            raise self.arguments.invalid(
                "format",
                f"is missing, and the names of the files of {folder.path} do not show it",
                "write format => 'json'",
            )
        return _FORMATS[ends[-1]]

    def _options(self, format: str, *, has_schema: bool) -> dict[str, str]:
        """The options of the format; those that Auto Loader has in another form are left out."""
        left_out = {"columnnameofcorruptrecord", "inferschema"}
        if format not in ("parquet", "orc"):
            left_out.add("mergeschema")
        options = {name: value for name, value in self.loader.options.items() if name.lower() not in left_out}
        if format == "csv" and not has_schema:
            if "header" not in {name.lower() for name in options}:
                options["header"] = "true"
            options["inferSchema"] = str(self.loader.infers_types).lower()
        return options

    def _check_mode(self, format: str) -> None:
        """Note or refuse a mode of evolution that a reader of Spark does not have."""
        if format in ("csv", "text"):
            # A CSV file without a header has no names, and one with another number of columns stops the flow.
            return
        if self.loader.mode == "failonnewcolumns":
            problem = f"failOnNewColumns works with JSON lines and CSV, not with {format} files"
            raise self.arguments.invalid("schemaEvolutionMode", problem, "remove it")
        if self.loader.mode != "none":
            text = f"{self.arguments.call}: columns that only later {format} files have are not read"
            self.read.note(f"{text}; with JSON lines they become columns")

    def _inferred(self, folder: FileFolder, format: str, options: Mapping[str, str]) -> StructType:
        """The columns of the files, with the types of the hints."""
        found = _without(kept_schema(self.active, folder, format, options), _CORRUPT)
        hints = self._hints()
        if not self.loader.infers_types:
            partitions = folder.partition_columns()
            typed = () if format in _TEXTS else [one for one in found.fieldNames() if one not in partitions]
            found = _strings(found, typed, {names[0] for names, _ in hints if len(names) > 1})
        for names, kind in hints:
            found = _hinted(found, names, kind)
        return found

    def _hints(self) -> tuple[tuple[tuple[str, ...], DataType], ...]:
        from pyspark.errors import PySparkException

        try:
            return tuple(
                (names, T.StructType.fromDDL(f"a {kind}").fields[0].dataType)
                for names, kind in split_hints(self.loader.hints or "")
            )
        except (ValueError, PySparkException) as error:
            problem = f"is not a list of columns with types: {self.loader.hints}"
            raise self.arguments.invalid(
                "schemaHints", problem, "write such as id INT, at.day DATE"
            ) from error

    def _drift(self, schema: StructType, format: str) -> Drift:
        """The actions for JSON records and headers of CSV files that differ from the columns."""
        loader = self.loader
        if loader.rescued is None:
            return Drift("fail" if loader.mode == "failonnewcolumns" else None)
        known: dict[str, DriftAction] = dict.fromkeys(_leaves(schema), "rescue")
        match loader.mode:
            case "addnewcolumns" if format == "csv" and self.active.registry is not None:
                # A read at module level has no flow whose schema could grow.
                return Drift("rescue")
            case "addnewcolumns":
                return Drift("evolve", known)
            case "failonnewcolumns":
                return Drift("fail", known)
            case "rescue" | "none":
                return Drift("rescue")

    def _with_rescued(self, frame: DataFrame, format: str) -> DataFrame:
        name = self.loader.rescued
        if name is None or format == "text":
            return frame
        if RESCUED in frame.columns:
            others = [one for one in frame.columns if one != RESCUED]
            return frame.select(*(F.col(f"`{one}`") for one in others), F.col(RESCUED).alias(name))
        return frame.withColumn(name, F.lit(None).cast("string"))

    def _batch(
        self, folder: FileFolder, format: str, schema: StructType | None, options: Mapping[str, str]
    ) -> DataFrame:
        from headrace.sources.files import read as files

        checks = files.CSV_CHECKS if format == "csv" else {}
        reader = self.active.session().read.format(format).options(**checks).options(**options)
        if folder.recursive:
            reader = reader.option("recursiveFileLookup", "true")
        if folder.glob is not None:
            reader = reader.option("pathGlobFilter", folder.glob)
        frame = (reader if schema is None else reader.schema(schema)).load(folder.path)
        return self._with_rescued(frame, format)


def _without(schema: StructType, name: str) -> StructType:
    return T.StructType([field for field in schema.fields if field.name != name])


def _strings(schema: StructType, typed: Collection[str], structs: Collection[str] = ()) -> StructType:
    """The columns as strings; a nested value is JSON."""
    return T.StructType(
        [
            field
            if field.name in typed
            else T.StructField(field.name, _string_fields(field.dataType))
            if field.name in structs
            else T.StructField(field.name, T.StringType())
            for field in schema.fields
        ]
    )


def _string_fields(kind: DataType) -> DataType:
    match kind:
        case T.StructType():
            return T.StructType(
                [T.StructField(one.name, _string_fields(one.dataType)) for one in kind.fields]
            )
        case T.ArrayType():
            return T.ArrayType(_string_fields(kind.elementType))
        case _:
            return T.StringType()


def _hinted(kind: Any, names: tuple[str, ...], hint: DataType) -> Any:
    """A type in which one column or field has the type of a hint; a field that does not exist is added."""
    if not names:
        return hint
    first, *rest = names
    if isinstance(kind, T.ArrayType) and first == "element":
        return T.ArrayType(_hinted(kind.elementType, tuple(rest), hint))
    if isinstance(kind, T.MapType) and first in ("key", "value"):
        key = _hinted(kind.keyType, tuple(rest), hint) if first == "key" else kind.keyType
        value = _hinted(kind.valueType, tuple(rest), hint) if first == "value" else kind.valueType
        return T.MapType(key, value)
    fields = kind.fields if isinstance(kind, T.StructType) else []
    known = next((one for one in fields if one.name.casefold() == first.casefold()), None)
    inner = _hinted(None if known is None else known.dataType, tuple(rest), hint)
    if known is None:
        return T.StructType([*fields, T.StructField(first, inner)])
    return T.StructType([T.StructField(one.name, inner) if one is known else one for one in fields])


def _leaves(schema: StructType, path: str = "") -> Iterator[str]:
    """The dotted names of the columns and fields whose values are no objects."""
    for one in schema.fields:
        name, kind = f"{path}{field_name(one.name)}", one.dataType
        if isinstance(kind, T.StructType):
            yield from _leaves(kind, f"{name}.")
        elif not (isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StructType)):
            yield name
