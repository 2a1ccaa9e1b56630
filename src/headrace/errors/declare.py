"""The spec and the pipeline's files."""

from __future__ import annotations

from headrace.errors.base import UsageError


class SpecAmbiguousError(UsageError):
    """A folder has two specs of one kind, such as `spark-pipeline.yml` and `spark-pipeline.yaml`.

    Remove one of the specs, or choose one with `--spec`. Spark uses the same error code.
    """

    code = "MULTIPLE_PIPELINE_SPEC_FILES_FOUND"


class SpecNotFoundError(UsageError):
    """There is no `headrace.yml` in this folder or in a folder above it.

    Change to the folder of the pipeline, name it with `--project`, or write a new one with `headrace init`.
    """

    code = "SPEC_NOT_FOUND"


class SpecInvalidError(UsageError):
    """`headrace.yml` is not valid YAML, or one of its values is missing or has the wrong type.

    Correct the line that the message names. The message lists the valid values.
    """

    code = "SPEC_INVALID"


class SpecUnknownKeyError(UsageError):
    """`headrace.yml` has an unknown key, most likely a misspelling.

    Write the suggested key, or remove the line.
    """

    code = "SPEC_UNKNOWN_KEY"


class SpecVariableUnsetError(UsageError):
    """`headrace.yml` uses environment variables that are not set.

    Set the variable, write it into a `.env` file in the folder of the spec, or give a default in the spec:
    `${NAME:-default}`.
    """

    code = "SPEC_VARIABLE_UNSET"


class SpecFileUnreadableError(UsageError):
    """`headrace.yml` takes a value from a file, `${file:PATH}`, and the file cannot be read.

    Paths are relative to the folder of the spec. Create the file, or correct the path.
    """

    code = "SPEC_FILE_UNREADABLE"


class DotenvInvalidError(UsageError):
    """A line of the `.env` file is not `NAME=value`.

    Correct the line; put values with spaces or `#` into quotes.
    """

    code = "DOTENV_INVALID"


class ProfileUnknownError(UsageError):
    """`headrace.yml` has no profile of this name.

    Choose another one with `--profile` or `HEADRACE_PROFILE`, or add it under `profiles:`.
    """

    code = "PROFILE_UNKNOWN"


class StorageUnsupportedError(UsageError):
    """Headrace does not support this kind of storage; local paths and `file://` work.

    Give a local path, in the spec or with `--storage`. A stream over a Delta table needs such a path too,
    because Headrace reads the table's log. A batch read (`spark.read`) can use any path that Spark can read.
    """

    code = "STORAGE_UNSUPPORTED"


class PipelineFilesMissingError(UsageError):
    """The patterns under `libraries` match no Python or SQL file.

    Move the files into a folder that a pattern matches, or change the patterns.
    """

    code = "PIPELINE_FILES_MISSING"


class ExpectationInvalidError(UsageError):
    """An expectation cannot be checked: its condition is wrong, its name is used twice, or it is on a
    function that declares no dataset.

    A condition is true or false for each row, from the columns of that row alone: it has no subquery, no
    aggregate and nothing random, and returns a BOOLEAN.
    """

    code = "EXPECTATION_INVALID"


class NothingDeclaredError(UsageError):
    """The files of the pipeline declare no dataset.

    Decorate a query function with `@hr.table`, `@hr.materialized_view` or `@hr.temporary_view`.
    """

    code = "NOTHING_DECLARED"


class PipelineFileFailedError(UsageError):
    """A file of the pipeline raised an exception, or is not valid Python.

    Correct the line; `--debug` shows the stack trace.
    """

    code = "PIPELINE_FILE_FAILED"


class SqlInvalidError(UsageError):
    """A statement in an SQL file is incomplete, or has a syntax error.

    Correct the statement at the line and column that the message shows. The query after `AS` is Spark SQL; an
    error in it has the code `QUERY_FAILED`.
    """

    code = "SQL_INVALID"


class SqlParameterUnsetError(UsageError):
    """An SQL file uses a parameter, `${name}`, that has no value.

    Set it under `configuration` in `headrace.yml`, or with `SET name = value` above the statement.
    """

    code = "SQL_PARAMETER_UNSET"


class PipelineValueUnsetError(UsageError):
    """A file reads a widget or a secret from `dbutils` that `headrace.yml` does not set.

    Set widgets under `configuration`, and secrets under `secrets`, as `scope/key: ${VARIABLE}`.
    """

    code = "PIPELINE_VALUE_UNSET"


class DuplicateNameError(UsageError):
    """Two datasets or two flows have the same name; upper and lower case are not distinguished.

    Rename one of the two; the message names both lines.
    """

    code = "DUPLICATE_NAME"


class MultipartFlowNameError(UsageError):
    """The name of a flow has several parts.

    Flows have no schema: their names are unique in the whole pipeline.
    """

    code = "MULTIPART_FLOW_NAME_NOT_SUPPORTED"


class ArgumentInvalidError(UsageError):
    """A decorator or function of Headrace was called with a wrong argument.

    Correct the call. The message lists the valid values.
    """

    code = "ARGUMENT_INVALID"


class FormatUnsupportedError(UsageError):
    """A table is declared with a format other than Delta.

    Remove the argument `format`: every table of a pipeline is a Delta table.
    """

    code = "FORMAT_UNSUPPORTED"


class FeatureUnsupportedError(UsageError):
    """The pipeline uses something that this version of Headrace does not support.

    The message names an alternative, if there is one.
    """

    code = "FEATURE_UNSUPPORTED"


class NoActivePipelineError(UsageError):
    """`spark` or `read_kafka` was used outside of a pipeline.

    Use them in the files of a pipeline, and run these files with `headrace plan` or `headrace run`.
    """

    code = "NO_ACTIVE_PIPELINE"
