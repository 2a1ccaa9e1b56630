"""The spec and the pipeline's files."""

from __future__ import annotations

from headrace.errors.base import UsageError


class SpecNotFoundError(UsageError):
    """There is no ``headrace.yml`` here, nor in a folder above.

    Go to the pipeline's folder, name it with ``--project``, or write a new one with ``headrace init``.
    """

    code = "SPEC_NOT_FOUND"


class SpecInvalidError(UsageError):
    """``headrace.yml`` is not YAML, or a value in it is missing or of the wrong kind.

    Mend the named line; the message says what belongs there.
    """

    code = "SPEC_INVALID"


class SpecUnknownKeyError(UsageError):
    """``headrace.yml`` holds a key that means nothing, most likely a misspelling.

    Write the suggested key, or remove the line.
    """

    code = "SPEC_UNKNOWN_KEY"


class SpecVariableUnsetError(UsageError):
    """Values of ``headrace.yml`` need environment variables that are not set.

    Set the variable, write it into a `.env` file beside the spec, or give a default in the spec:
    ``${NAME:-default}``.
    """

    code = "SPEC_VARIABLE_UNSET"


class SpecFileUnreadableError(UsageError):
    """A value of ``headrace.yml`` is to come from a file, ``${file:PATH}``, that cannot be read.

    Paths are relative to the spec's folder. Make the file, or correct the path.
    """

    code = "SPEC_FILE_UNREADABLE"


class DotenvInvalidError(UsageError):
    """A line of the `.env` file beside ``headrace.yml`` is not ``NAME=value``.

    Mend the named line; put values with spaces or ``#`` into quotes.
    """

    code = "DOTENV_INVALID"


class ProfileUnknownError(UsageError):
    """The profile that was asked for is not in ``headrace.yml``.

    Name one that is, with ``--profile`` or ``HEADRACE_PROFILE``, or add it under ``profiles:``.
    """

    code = "PROFILE_UNKNOWN"


class StorageUnsupportedError(UsageError):
    """The location is of a kind of storage that Headrace does not support; local paths and ``file://`` work.

    Give a local path, in the spec or with `--storage`.
    """

    code = "STORAGE_UNSUPPORTED"


class PipelineFilesMissingError(UsageError):
    """The globs under ``libraries`` match no Python file.

    Put the pipeline's files where the globs look, or change the globs.
    """

    code = "PIPELINE_FILES_MISSING"


class NothingDeclaredError(UsageError):
    """The pipeline's files ran, and declared no dataset.

    Decorate a query function with ``@hr.table``, ``@hr.materialized_view`` or ``@hr.temporary_view``.
    """

    code = "NOTHING_DECLARED"


class PipelineFileFailedError(UsageError):
    """A file of the pipeline raised an exception, or is not valid Python.

    Mend the named line; ``--debug`` shows the whole trace.
    """

    code = "PIPELINE_FILE_FAILED"


class DuplicateNameError(UsageError):
    """Two datasets, or two flows, have the same name; upper and lower case count as equal.

    Rename one of the two places that the message names.
    """

    code = "DUPLICATE_NAME"


class ArgumentInvalidError(UsageError):
    """A decorator or function of Headrace was given an argument that it does not take.

    Mend the call; the message says what the argument may be.
    """

    code = "ARGUMENT_INVALID"


class FormatUnsupportedError(UsageError):
    """A table asks for a format other than Delta.

    Remove the ``format`` argument: every table of a pipeline is a Delta table.
    """

    code = "FORMAT_UNSUPPORTED"


class FeatureUnsupportedError(UsageError):
    """The pipeline uses something that this version of Headrace cannot do yet.

    The message says what to write in its place, where there is something.
    """

    code = "FEATURE_UNSUPPORTED"


class NoActivePipelineError(UsageError):
    """``spark`` or ``read_kafka`` was used while no pipeline was being planned or run.

    Use them inside a pipeline's files, and start those with ``headrace plan`` or ``headrace run``.
    """

    code = "NO_ACTIVE_PIPELINE"
