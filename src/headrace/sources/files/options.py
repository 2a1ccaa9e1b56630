"""The options of readers of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.errors import did_you_mean
from headrace.sources.bad_records import SCHEMA_NUMBER, VALUE_LIMIT
from headrace.sources.decoders import invalid_argument
from headrace.sources.files.headers import HEADERS_OPTION
from headrace.sources.requests import ADAPTIVE, KnownOptions

FORMAT_OPTION: Final = "headrace.files.format"
"""An option without effect that carries the format as the user named it."""

BASE_PATH: Final = "basePath"
"""The option with the folder below which Spark reads columns from the names of folders."""

_CHOOSING = (
    *("pathGlobFilter", "recursiveFileLookup", "ignoreMissingFiles", "ignoreCorruptFiles"),
    *("modifiedBefore", "modifiedAfter"),
)
STREAM_OPTIONS: Final = (
    *("maxFilesPerTrigger", "maxBytesPerTrigger", "latestFirst", "maxFileAge", "fileNameOnly", "cleanSource"),
    *("sourceArchiveDir", "maxCachedFiles", "discardCachedInputRatio", *_CHOOSING),
)
_TIMES = (
    *("dateFormat", "timestampFormat", "timestampNTZFormat", "timeZone", "locale"),
    "enableDateTimeParsingFallback",
)
_RECORDS = (
    *("mode", "columnNameOfCorruptRecord", "multiLine", "encoding", "charset", "lineSep"),
    "samplingRatio",
)
_FORMAT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "json": (
        *_TIMES,
        *_RECORDS,
        *("primitivesAsString", "prefersDecimal", "allowComments", "allowUnquotedFieldNames"),
        *("allowSingleQuotes", "allowNumericLeadingZeros", "allowBackslashEscapingAnyCharacter"),
        *("allowUnquotedControlChars", "dropFieldIfAllNull", "allowNonNumericNumbers", "inferTimestamp"),
    ),
    "csv": (
        *_TIMES,
        *_RECORDS,
        *("sep", "delimiter", "quote", "escape", "comment", "header", "inferSchema", "enforceSchema"),
        *("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "nullValue", "nanValue", "positiveInf"),
        *("negativeInf", "maxColumns", "maxCharsPerColumn", "unescapedQuoteHandling", "emptyValue"),
        *("charToEscapeQuoteEscaping", "preferDate"),
    ),
    "parquet": ("mergeSchema", "datetimeRebaseMode", "int96RebaseMode"),
    "avro": ("avroSchema", "ignoreExtension", "mode", "datetimeRebaseMode", "positionalFieldMatching"),
    "text": ("wholetext", "lineSep"),
    "orc": ("mergeSchema",),
}
_OWN = (FORMAT_OPTION, HEADERS_OPTION, SCHEMA_NUMBER, VALUE_LIMIT)
LINE_OPTIONS: Final = frozenset(
    name.lower() for name in (*STREAM_OPTIONS, *_FORMAT_OPTIONS["text"], *_OWN, BASE_PATH)
)
"""Options that the reader of lines takes; the others are for the parser."""

_OF_READERS_ALONE = (
    *(BASE_PATH, "path", "ignoreInvalidPartitionPaths", "singleVariantColumn", "timeFormat"),
    *("maxNestingDepth", "maxNumLen", "maxStringLen", "useUnsafeRow", "inputBufferSize", "extension"),
    *("columnPruning", "avroSchemaUrl", "enableStableIdentifiersForUnionType", "recursiveFieldMaxDepth"),
    *("stableIdentifierPrefixForUnionType", "rowTag", "excludeAttribute", "attributePrefix", "valueTag"),
    *("ignoreSurroundingSpaces", "rowValidationXSDPath", "wildcardColName", "ignoreNamespace"),
    *("arrayElementName", "useLegacyXMLParser"),
)
_OF_SPARKS_READERS = (
    *sorted({name for names in _FORMAT_OPTIONS.values() for name in names}),
    *_OF_READERS_ALONE,
    # Options of writers, which pipelines give to both
    *("compression", "codec"),
)
_WITH_EFFECT = frozenset(
    name.lower() for name in (*_OF_READERS_ALONE, "encoding", "charset", "skipRows", "parserCaseSensitive")
)
"""Options that change the rows of some format on Databricks, and that a reader here does not have."""
SPARKS_OPTIONS: Final = KnownOptions(
    stream=(*STREAM_OPTIONS, *_OF_SPARKS_READERS),
    batch=(*_CHOOSING, *_OF_SPARKS_READERS),
    prefixes=("fs.", "dfs.", "hadoop.", "parquet.", "orc.", "avro.", "mapreduce.", "spark."),
    marks=frozenset({"headrace.location", ADAPTIVE, "__globPaths__", *_OWN}),
)
"""Options of ``spark.readStream`` and ``spark.read``. An option that only another format has is known too:
pipelines set `inferSchema` for any format, and it changes nothing."""


def check_options(
    call: str, format: str, options: Mapping[str, str], *, passes_unknown: bool = False
) -> list[str]:
    """Refuse an option that neither the format nor a stream of files knows.

    With `passes_unknown`, an option that has no effect on Databricks either is returned. One that is like a
    known option is refused.
    """
    known = (*STREAM_OPTIONS, *_FORMAT_OPTIONS[format])
    passed = []
    for name in options:
        if name.lower() in {one.lower() for one in known}:
            continue
        meant = did_you_mean(name, known)
        if not passes_unknown or meant or "." in name or name.lower() in _WITH_EFFECT:
            problem, remedies = f"{format} files have no option `{name}`", meant or ("leave it out",)
            raise invalid_argument(call, "options", problem, *remedies, option=name)
        passed.append(name)
    return passed
