"""``dbutils`` in pipeline files: widgets and secrets have the values of the spec."""

from __future__ import annotations

import errno
import getpass
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import FeatureUnsupportedError, PipelineValueUnsetError
from headrace.model.folders import Entry
from headrace.model.project import ProjectSettings
from headrace.storage.layout import locate
from headrace.storage.location import Location
from headrace.storage.mapped_files import mapped_path
from headrace.syntax.locations import caller


class _Part:
    """A part of ``dbutils``. A call that it does not have is an error with the name of the call."""

    def __init__(self, settings: ProjectSettings, name: str, remedies: Sequence[str] = ()) -> None:
        self._settings = settings
        self._name = name
        self._remedies = remedies

    def __getattr__(self, name: str) -> Any:
        # Tools probe for dunder attributes (copy, pickle, inspect).
        if name.startswith("_"):
            raise AttributeError(name)
        raise _unsupported(self._settings, f"{self._name}.{name}", self._remedies)


class Dbutils(_Part):
    """The utilities of Databricks, with the ``configuration`` and ``secrets`` of the spec as their values."""

    def __init__(self, settings: ProjectSettings) -> None:
        super().__init__(settings, "dbutils")
        self.widgets = _Widgets(settings)
        self.secrets = _Secrets(settings)
        self.fs = _Files(settings, "dbutils.fs", ["use Python's own modules, such as pathlib"])
        self.library = _Library(settings, "dbutils.library", ["install the package beside Headrace"])
        self.notebook = _Notebook(settings, "dbutils.notebook", ["include other files with %run or import"])
        self.entry_point = self.notebook.entry_point
        self.jobs = _Jobs(settings, "dbutils.jobs")


class _Library(_Part):
    def restartPython(self) -> None:
        """A pipeline has one Python process, which has its packages when it starts."""


class _Notebook(_Part):
    """The notebook that is loaded: its path and its user are known."""

    @property
    def entry_point(self) -> Any:
        return _EntryPoint(self)

    def getContext(self) -> _Context:
        return _Context(self._settings, "the notebook context")


class _EntryPoint:
    """``entry_point.getDbutils().notebook()``, which notebooks call to get their context."""

    def __init__(self, notebook: _Notebook) -> None:
        self._notebook = notebook

    def getDbutils(self) -> _EntryPoint:
        return self

    def notebook(self) -> _Notebook:
        return self._notebook


class _Context(_Part):
    """Facts about a notebook; each is an `_Option`, without a value if only Databricks knows it."""

    def notebookPath(self) -> _Option:
        # Databricks shows the path of a notebook without the end of its file's name.
        return self._option("notebookPath", str(Path(caller(None).path).with_suffix("")))

    def userName(self) -> _Option:
        return self._option("userName", getpass.getuser())

    def tags(self) -> _Tags:
        return _Tags(self)

    def toJson(self) -> str:
        path, user = self.notebookPath().get(), self.userName().get()
        return json.dumps(
            {
                "attributes": {"notebook_path": path, "user": user},
                "extraContext": {"notebook_path": path},
                "tags": {"user": user},
            }
        )

    safeToJson = toJson

    def _option(self, name: str, value: str | None) -> _Option:
        return _Option(self._settings, f"{name} of a notebook", value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda: self._option(name, None)


class _Tags:
    def __init__(self, context: _Context) -> None:
        self._context = context

    def get(self, name: str) -> _Option:
        return self._context._option(f"the tag {name}", getpass.getuser() if name == "user" else None)

    def apply(self, name: str) -> str:
        return self.get(name).get()


class _Option:
    """A value that may be missing, with the methods that it has in Scala."""

    def __init__(self, settings: ProjectSettings, name: str, value: str | None) -> None:
        self._settings = settings
        self._name = name
        self._value = value

    def get(self) -> str:
        if self._value is None:
            raise _unsupported(self._settings, self._name, ["only Databricks has it: remove the call"])
        return self._value

    def getOrElse(self, default: Any) -> Any:
        return default if self._value is None else self._value

    def isDefined(self) -> bool:
        return self._value is not None

    def isEmpty(self) -> bool:
        return self._value is None


class _Jobs(_Part):
    """Values of the tasks of a job: outside of a job, Databricks gives the ``debugValue``."""

    @property
    def taskValues(self) -> _TaskValues:
        return _TaskValues(self._settings, "dbutils.jobs.taskValues")


class _TaskValues(_Part):
    def get(self, taskKey: str, key: str, default: Any = None, debugValue: Any = None) -> Any:
        if debugValue is None:
            line = "give the call a debugValue, or read a value of the spec with spark.conf.get"
            raise _unsupported(self._settings, "dbutils.jobs.taskValues.get without debugValue", [line])
        return debugValue

    def set(self, key: str, value: Any) -> None:
        """No effect outside of a job, as on Databricks."""


class _Widgets(_Part):
    """Widgets: a value is from ``configuration`` in the spec, or else the default that the file gives."""

    def __init__(self, settings: ProjectSettings) -> None:
        super().__init__(settings, "dbutils.widgets")
        self._defaults: dict[str, str] = {}

    def text(self, name: str, defaultValue: Any = "", label: str | None = None) -> None:
        self._defaults[name] = str(defaultValue)

    def dropdown(
        self, name: str, defaultValue: Any, choices: Sequence[str] = (), label: str | None = None
    ) -> None:
        self.text(name, defaultValue)

    combobox = multiselect = dropdown

    def get(self, name: str) -> str:
        found = self._settings.configuration.get(name, self._defaults.get(name))
        if found is None:
            raise _unset(self._settings, "the widget", name, f"configuration: {{{name}: VALUE}}")
        return found

    def getArgument(self, name: str, defaultValue: str | None = None) -> str:
        if defaultValue is not None:
            self._defaults.setdefault(name, defaultValue)
        return self.get(name)

    def getAll(self) -> dict[str, str]:
        return {name: self.get(name) for name in self._defaults}

    def remove(self, name: str) -> None:
        self._defaults.pop(name, None)

    def removeAll(self) -> None:
        self._defaults.clear()


class FileInfo(NamedTuple):
    """An entry of a folder; the names of folders end with a slash."""

    path: str
    name: str
    size: int
    modificationTime: int

    def isDir(self) -> bool:
        return self.name.endswith("/")

    def isFile(self) -> bool:
        return not self.isDir()


class _Files(_Part):
    """Files: ``ls`` lists a folder, whose path the spec may map."""

    def ls(self, dir: str) -> list[FileInfo]:
        given = locate(mapped_path(dir, self._settings, caller(self._settings.root)))
        found = sorted(given.entries(), key=lambda entry: entry.name)
        if not found and (state := given.look()) is not None:
            return [FileInfo(str(given), given.name, state.size, state.modified_ms)]
        if not found and not given.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(given))
        return [_file_info(given, entry) for entry in found]

    def __getattr__(self, name: str) -> Any:
        if "mount" in name.lower() and not name.startswith("_"):
            # Python's own modules read a path, and give it no other name.
            raise _unsupported(self._settings, f"{self._name}.{name}", [_MOUNTED])
        return super().__getattr__(name)


def _file_info(folder: Location, entry: Entry) -> FileInfo:
    name = f"{entry.name}/" if entry.is_folder else entry.name
    return FileInfo(str(folder / name), name, 0 if entry.is_folder else entry.size, entry.modified_ms)


class SecretScope(NamedTuple):
    name: str


class SecretMetadata(NamedTuple):
    key: str


class _Secrets(_Part):
    """Secrets: their values are from ``secrets`` in the spec, by scope and key."""

    def __init__(self, settings: ProjectSettings) -> None:
        super().__init__(settings, "dbutils.secrets")

    def list(self, scope: str) -> Sequence[SecretMetadata]:
        names = (name.partition("/") for name in self._settings.secrets)
        return [SecretMetadata(key) for one, _, key in names if one == scope]

    def listScopes(self) -> Sequence[SecretScope]:
        return [
            SecretScope(one) for one in dict.fromkeys(n.partition("/")[0] for n in self._settings.secrets)
        ]

    def get(self, scope: str, key: str) -> str:
        name = f"{scope}/{key}"
        found = self._settings.secrets.get(name)
        if found is None:
            raise _unset(self._settings, "the secret", name, f"secrets: {{{name}: ${{VARIABLE}}}}")
        return found

    def getBytes(self, scope: str, key: str) -> bytes:
        return self.get(scope, key).encode()


_MOUNTED = (
    "remove the call, and give mounted paths their folder in headrace.yml:   paths: {/mnt/NAME: ./FOLDER}"
)


def _unsupported(settings: ProjectSettings, what: str, remedies: Sequence[str]) -> FeatureUnsupportedError:
    return FeatureUnsupportedError(
        f"this version does not support {what}",
        location=caller(settings.root),
        remedies=remedies
        or ["remove the call; a pipeline can use dbutils.widgets, dbutils.secrets and dbutils.fs"],
        params={"what": what},
    )


def _unset(settings: ProjectSettings, what: str, name: str, line: str) -> PipelineValueUnsetError:
    return PipelineValueUnsetError(
        f"{what} `{name}` has no value",
        location=caller(settings.root),
        remedies=[f"set it in {settings.spec_to_edit}, for all profiles or for one:   {line}"],
        params={"name": name},
    )


NO_DISPLAY: Callable[..., None] = lambda *_, **__: None  # noqa: E731
"""``display`` of a notebook: a pipeline shows nothing."""
