"""``dbutils`` in pipeline files: widgets and secrets have the values of the spec."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.errors import FeatureUnsupportedError, PipelineValueUnsetError
from headrace.model.folders import Entry
from headrace.model.project import ProjectSettings
from headrace.storage.locate import locate
from headrace.storage.location import Location
from headrace.storage.mapped_paths import mapped_path
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
        self.notebook = _Part(
            settings,
            "dbutils.notebook",
            ["include other files with %run or import; only Databricks has the context of a notebook"],
        )
        self.jobs = _Jobs(settings, "dbutils.jobs")


class _Library(_Part):
    def restartPython(self) -> None:
        """A pipeline has one Python process, which has its packages when it starts."""


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
