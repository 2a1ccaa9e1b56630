"""Folders of files as streaming DataFrames, with the file of each row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, get_args

from headrace.errors import FilesNotFoundError, HeadraceError, did_you_mean
from headrace.model.declarations import RESCUED, Drift
from headrace.model.folders import FileFolder, plain_path
from headrace.model.notes import nearest_path
from headrace.runtime.lazy_pyspark import (
    Column,
    DataFrame,
    DataFrameReader,
    DataType,
    F,
    SparkSession,
    StructField,
    StructType,
    T,
)
from headrace.sources.bad_records import (
    MAX_VALUE_BYTES,
    SCHEMA_NUMBER,
    VALUE_LIMIT,
    BadRecordRule,
    BadRecords,
    Evolving,
    RecordRules,
)
from headrace.sources.decoders import (
    DecimalReader,
    Decoder,
    InvalidUtf8,
    choose_decoder,
    has_decimals,
    invalid_argument,
)
from headrace.sources.files.by_header import find_groups
from headrace.sources.files.headers import HeaderGroup, HeaderRules, has_header
from headrace.sources.files.options import BASE_PATH, FORMAT_OPTION, LINE_OPTIONS, STREAM_OPTIONS
from headrace.sources.records import stop_because

FileFormat = Literal["json", "csv", "parquet", "avro", "text", "orc"]

ANY_FILE_NAME: Final = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Options with which Spark reads files whose name has a colon. By default, Hadoop looks for a file of
checksums beside each file, and cannot build the path of that file if the name has a colon."""


def any_file_name(path: str | None) -> Mapping[str, str]:
    """`ANY_FILE_NAME` for local files; none for files on S3, whose client needs Hadoop's own class of local
    files for its buffers."""
    return {} if path is not None and plain_path(path).startswith("s3://") else ANY_FILE_NAME


_NATIVE_JSON = frozenset({"multiline", "mode", "columnnameofcorruptrecord", "encoding", "charset"})
"""Options that need Spark's own reader of JSON files."""

_SPARKS_JSON = "Spark's own JSON reader, which the options need"

_CORRUPT = "_corrupt_record"

_COMPARED_FILES: Final = 1000
"""The files whose headers are compared before columns are inferred, as Auto Loader does."""

CSV_CHECKS: Final = {"enforceSchema": "false", "columnPruning": "false"}
"""Options with which Spark compares the whole header of each CSV file with the columns, and the width of each
row. By default it ignores the header, and parses only the columns that the query uses."""


def check_format(format: str) -> None:
    formats = get_args(FileFormat)
    if format not in formats:
        problem, remedies = (
            f"format={format!r} is not one of {', '.join(formats)}",
            did_you_mean(format, formats),
        )
        raise invalid_argument("read_files", "format", problem, *remedies, value=format)


def check_folder(folder: FileFolder) -> None:
    base = folder.base
    if not folder.exists():
        near = nearest_path(base) if base.startswith("/") else None
        raise FilesNotFoundError(
            f"the folder {base} does not exist",
            facts=("a relative path starts at the pipeline's folder",),
            remedies=("correct the path", f"or make the folder:   mkdir -p {base}")
            if near is None
            else (f"did you mean `{near}`?",),
            params={"path": base},
        )
    above, _, name = base.rpartition("/")
    if any(entry.name == name and not entry.is_folder for entry in folder.storage.entries(above or "/")):
        raise FilesNotFoundError(
            f"{base} is a file; a stream reads a folder",
            remedies=(f'read its folder: hr.read_files("{above}", glob="{name}")',),
            params={"path": base},
        )


def infer_schema(
    spark: SparkSession, folder: FileFolder, format: str, options: Mapping[str, str]
) -> StructType:
    """The columns of the files that exist now."""
    if next(folder.files(), None) is None:
        others = "" if folder.glob is None else f" whose name matches {folder.glob}"
        raise FilesNotFoundError(
            f"the folder {folder.path} has no file{others}, so the columns cannot be inferred",
            facts=("Spark ignores files whose name begins with `.` or `_`",),
            remedies=(
                'give the columns: hr.read_files(.., schema="id LONG, name STRING")',
                "or put the first files into the folder",
            ),
            params={"path": folder.path, "glob": folder.glob},
        )
    if format == "csv" and has_header(options):
        rules = HeaderRules(columns=(), ignores_case=_ignores_case(spark))
        paths = sorted(file.path for file in folder.files())[:_COMPARED_FILES]
        groups = find_groups(spark, options, rules, paths)
        if len(groups) > 1:
            return _infer_by_name(spark, folder, options, [one for one in groups if one.layout.header], rules)
    reader = _inferring(spark, format, options).options(**_choosing(folder))
    schema: StructType = reader.load(folder.path).schema
    if not schema.fields:
        raise FilesNotFoundError(
            f"the files of {folder.path} have no columns",
            remedies=('give the columns: hr.read_files(.., schema="id LONG, name STRING")',),
            params={"path": folder.path},
        )
    return schema


def _inferring(spark: SparkSession, format: str, options: Mapping[str, str]) -> DataFrameReader:
    """A reader that infers the columns of files."""
    stream = {name.lower() for name in STREAM_OPTIONS}
    chosen = {name: value for name, value in options.items() if name.lower() not in stream}
    reader = spark.read.format(format).options(**{**chosen, **ANY_FILE_NAME})
    if format == "csv" and "inferschema" not in {name.lower() for name in chosen}:
        reader = reader.option("inferSchema", "true")
    return reader


def _infer_by_name(
    spark: SparkSession,
    folder: FileFolder,
    options: Mapping[str, str],
    groups: Sequence[HeaderGroup],
    rules: HeaderRules,
) -> StructType:
    """The columns of CSV files with several headers."""
    partitions = folder.partition_columns()
    reader = _inferring(spark, "csv", options).option("__globPaths__", "false")
    reader = reader.options(**_choosing(folder))
    if partitions:
        reader = reader.option(BASE_PATH, folder.base)
    found = merge_columns(reader, groups, rules)
    columns = [name for name in found if name not in partitions] + [
        name for name in partitions if name in found
    ]
    return T.StructType([T.StructField(name, found[name]) for name in columns])


def merge_columns(
    reader: DataFrameReader, groups: Sequence[HeaderGroup], rules: HeaderRules
) -> dict[str, DataType]:
    """The columns of the files of several headers, each with a type that all its values have."""
    found: dict[str, tuple[str, DataType]] = {}
    for group in groups:
        fields = reader.load(list(group.paths)).schema.fields
        names = [*group.layout.names, *(one.name for one in fields[len(group.layout.names) :])]
        for name, one in zip(names, fields, strict=True):
            first, kind = found.get(rules.fold(name), (name, one.dataType))
            found[rules.fold(name)] = first, _common_type(kind, one.dataType)
    return dict(found.values())


def infer_types(
    spark: SparkSession, options: Mapping[str, str], groups: Sequence[HeaderGroup], rules: HeaderRules
) -> dict[str, DataType]:
    """The types of the columns of the files of several headers, by name."""
    left_out = ("path", "mode", "inferschema")
    chosen = {
        name: value
        for name, value in options.items()
        if name.lower() not in left_out and not name.startswith("headrace.")
    }
    reader = _inferring(spark, "csv", chosen).option("__globPaths__", "false")
    return merge_columns(reader, groups, rules)


def _common_type(one: DataType, other: DataType) -> DataType:
    """The smallest type that can hold the values of both types; text if there is no other."""
    if one == other:
        return one
    numbers = (T.IntegerType(), T.LongType(), T.DoubleType())
    if one in numbers and other in numbers:
        return max(one, other, key=numbers.index)
    return T.StringType()


def _ignores_case(spark: SparkSession) -> bool:
    return (spark.conf.get("spark.sql.caseSensitive", "false") or "false").lower() != "true"


def read(
    spark: SparkSession,
    folder: FileFolder,
    *,
    format: FileFormat,
    schema: StructType | None,
    limits: Mapping[str, str],
    options: Mapping[str, str],
    invalid_utf8: InvalidUtf8 = "reject",
    bad_records: BadRecordRule = "quarantine",
    max_value_bytes: int = MAX_VALUE_BYTES,
    drift: Drift | None = None,
    evolving: Evolving | None = None,
    notes_unknown: bool = False,
    found: list[BadRecords] | None = None,
) -> DataFrame:
    given = {**_choosing(folder), **limits, **options, FORMAT_OPTION: format}
    if evolving is not None:
        given[SCHEMA_NUMBER] = str(evolving.number)
    if max_value_bytes != MAX_VALUE_BYTES:
        given[VALUE_LIMIT] = str(max_value_bytes)
    partitions = folder.partition_columns()
    if schema is not None:
        _check_schema(schema, partitions)
    source = F.struct(
        F.col("_metadata.file_path").alias("path"),
        F.col("_metadata.file_size").alias("size"),
        F.col("_metadata.file_modification_time").alias("modified"),
    ).alias("_source")
    decoder = _choose_decoder(format, schema, partitions, options, invalid_utf8, drift)
    if decoder is None:
        if format == "csv" and schema is not None and has_header(options):
            given |= _header_rules(spark, schema, partitions, options, drift, evolving).to_option()
        rows = _read_records(spark, folder, format, schema, given)
        if format == "csv" and drift is not None and drift.has("rescue") and RESCUED not in rows.columns:
            rows = rows.withColumn(RESCUED, F.lit(None).cast("string"))
        if format not in ("csv", "json") or schema is None or not has_decimals(schema):
            return rows.select("*", source)
        kept = {one.name: _exact(one, format) for one in schema.fields if one.name not in partitions}
        return rows.select(*(kept.get(name, F.col(f"`{name}`")) for name in rows.columns), source)
    rules = RecordRules(
        decoder=decoder,
        bad_records=bad_records,
        max_value_bytes=max_value_bytes,
        notes_unknown=notes_unknown,
        evolving=evolving,
    )
    lines = _read_lines(spark, folder, schema, partitions, given)
    if format == "json":
        lines = lines.where(F.col("value").rlike(r"\S"))
    path = F.col("_metadata.file_path").alias("path")
    if found is not None:
        found.append(rules.find_bad(lines, [path], [path, F.col("value").cast("binary").alias("value")]))
    kept = {name: F.col(name) for name in partitions}
    return rules.decode(lines, [path], {**kept, "_source": source})


def _header_rules(
    spark: SparkSession,
    schema: StructType,
    partitions: Collection[str],
    options: Mapping[str, str],
    drift: Drift | None,
    evolving: Evolving | None,
) -> HeaderRules:
    given = {name.lower(): value for name, value in options.items()}
    added = {*partitions, given.get("columnnameofcorruptrecord", _CORRUPT)}
    return HeaderRules(
        columns=tuple(name for name in schema.fieldNames() if name not in added),
        drift=drift or Drift(),
        # Without a declared type, those of the first files were inferred, or all are strings.
        infers_types=given.get("inferschema", "true").lower() == "true",
        ignores_case=_ignores_case(spark),
        evolving=None if evolving is None else evolving.to_json(),
    )


def _choose_decoder(
    format: FileFormat,
    schema: StructType | None,
    partitions: tuple[str, ...],
    options: Mapping[str, str],
    invalid_utf8: InvalidUtf8,
    drift: Drift | None,
) -> Decoder | None:
    """The decoder of lines; None for files that a reader of Spark parses."""
    if format == "json" and schema is not None:
        if _CORRUPT in schema.fieldNames() or any(name.lower() in _NATIVE_JSON for name in options):
            if drift is not None and not drift.is_default:
                remedy = "remove drift, or the options that need Spark's reader, such as multiLine"
                raise invalid_argument(
                    "read_files", "drift", f"drift does not work with {_SPARKS_JSON}", remedy
                )
            return choose_decoder("read_files", _SPARKS_JSON, None, invalid_utf8)
        fields = T.StructType([field for field in schema.fields if field.name not in partitions])
        parsing = {name: value for name, value in options.items() if name.lower() not in LINE_OPTIONS}
        return choose_decoder("read_files", format, fields, invalid_utf8, parsing, drift)
    return choose_decoder("read_files", format, None, invalid_utf8)


def _read_records(
    spark: SparkSession,
    folder: FileFolder,
    format: FileFormat,
    schema: StructType | None,
    options: Mapping[str, str],
) -> DataFrame:
    """The rows of files that a reader of Spark parses; decimals of JSON and CSV are texts."""
    reader = spark.readStream.format(format)
    if format == "csv":
        reader = reader.options(**CSV_CHECKS)
    reader = reader.options(**options)
    if schema is None:
        return reader.load(folder.path)
    if format in ("csv", "json"):
        # Spark reads the values of partition columns from the names of folders, and rounds none.
        written = DecimalReader(schema, format).parsed
        partitions = folder.partition_columns()
        schema = T.StructType([schema[one.name] if one.name in partitions else one for one in written.fields])
    return reader.schema(schema).load(folder.path)


def _exact(column: StructField, format: Literal["json", "csv"]) -> Column:
    """A column whose decimals were read as they are written; one that would be rounded stops the flow."""
    written = F.col(f"`{column.name}`")
    if not has_decimals(column.dataType):
        return written
    where = F.col("_metadata.file_path").alias("path")
    wrong = f"a value of `{column.name}` is not exactly one of {column.dataType.simpleString().upper()}"
    shown = F.to_json(F.struct(written.alias(column.name)))
    stop = stop_because(wrong, shown, at=[where])

    def exact(record: Column, is_exact: Column | None) -> Column:
        value = record[column.name]
        return value if is_exact is None else F.when(is_exact, value).otherwise(stop)

    own = DecimalReader(T.StructType([column]), format)
    return own.read(F.struct(written.alias(column.name)), exact).alias(column.name)


def _read_lines(
    spark: SparkSession,
    folder: FileFolder,
    schema: StructType | None,
    partitions: tuple[str, ...],
    options: Mapping[str, str],
) -> DataFrame:
    """The lines of text files. Spark's JSON reader would ignore the second of two values on one line."""
    reader = spark.readStream.format("text")
    reader = reader.options(**{k: v for k, v in options.items() if k.lower() in LINE_OPTIONS})
    if partitions and schema is not None:
        columns = T.StructType().add("value", T.StringType())
        for name in partitions:
            columns = columns.add(schema[name])
        reader = reader.schema(columns)
    return reader.load(folder.path)


def _choosing(folder: FileFolder) -> dict[str, str]:
    chosen = {"recursiveFileLookup": "true"} if folder.recursive else {}
    # Without it, Spark reads no columns from the names of folders that a pattern matches.
    base = {BASE_PATH: folder.base} if folder.is_pattern and folder.partition_columns() else {}
    return chosen | base | ({} if folder.glob is None else {"pathGlobFilter": folder.glob})


def _check_schema(schema: StructType, partitions: tuple[str, ...]) -> None:
    names = schema.fieldNames()
    for name in ("_source", "_metadata"):
        if name in names:
            problem = f"the schema has a column `{name}`; read_files adds a column of this name"
            remedy = "read the files with spark.readStream, and rename the column"
            raise invalid_argument("read_files", "schema", problem, remedy, column=name)
    missing = [name for name in partitions if name not in names]
    if missing:
        problem = f"folders are named {missing[0]}=.., but the schema has no column `{missing[0]}`"
        add = f"add it to the schema: {missing[0]} STRING"
        otherwise = "or set recursive=True: folder names are not columns then"
        raise invalid_argument("read_files", "schema", problem, add, otherwise, column=missing[0])


def inference_failed(error: Exception, folder: FileFolder, format: str) -> HeadraceError:
    words = " ".join(str(error).split("JVM stacktrace")[0].split())[:300]
    return FilesNotFoundError(
        f"the columns of the {format} files of {folder.path} cannot be inferred",
        facts=(f"Spark's message: {words}",),
        remedies=('give the columns: hr.read_files(.., schema="id LONG, name STRING")', "or repair the file"),
        params={"path": folder.path, "format": format},
    )
