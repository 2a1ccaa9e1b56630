"""``dbutils`` in pipeline files: widgets and secrets have the values of the spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from headrace.errors import FeatureUnsupportedError, PipelineValueUnsetError
from headrace.model.project import ProjectSettings
from headrace.storage.mapped_paths import mapped_path
from headrace.syntax.locations import caller


class Dbutils:
    """The utilities of Databricks, with the ``configuration`` and ``secrets`` of the spec as their values."""

    def __init__(self, settings: ProjectSettings) -> None:
        self.widgets = _Widgets(settings)
        self.secrets = _Secrets(settings)
        self.fs = _Files(settings)
        self.library = SimpleNamespace(restartPython=lambda: None)
        self._root = settings.root

    def __getattr__(self, name: str) -> Any:
        # Tools probe for dunder attributes (copy, pickle, inspect).
        if name.startswith("_"):
            raise AttributeError(name)
        raise FeatureUnsupportedError(
            f"this version does not support dbutils.{name}",
            location=caller(self._root),
            remedies=["remove the call; a pipeline can use dbutils.widgets, dbutils.secrets and dbutils.fs"],
            params={"what": f"dbutils.{name}"},
        )


class _Widgets:
    """Widgets: a value is from ``configuration`` in the spec, or else the default that the file gives."""

    def __init__(self, settings: ProjectSettings) -> None:
        self._settings = settings
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


class _Files:
    """Files: ``ls`` lists a folder, whose path the spec may map."""

    def __init__(self, settings: ProjectSettings) -> None:
        self._settings = settings

    def ls(self, dir: str) -> list[FileInfo]:
        given = Path(mapped_path(dir, self._settings, caller(self._settings.root)))
        found = sorted(given.iterdir()) if given.is_dir() else [given]
        return [_file_info(entry) for entry in found]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise FeatureUnsupportedError(
            f"this version does not support dbutils.fs.{name}",
            location=caller(self._settings.root),
            remedies=["use Python's own modules, such as pathlib"],
            params={"what": f"dbutils.fs.{name}"},
        )


def _file_info(entry: Path) -> FileInfo:
    found = entry.stat()
    slash = "/" if entry.is_dir() else ""
    size = 0 if slash else found.st_size
    return FileInfo(f"{entry}{slash}", f"{entry.name}{slash}", size, int(found.st_mtime * 1000))


class _Secrets:
    """Secrets: their values are from ``secrets`` in the spec, by scope and key."""

    def __init__(self, settings: ProjectSettings) -> None:
        self._settings = settings

    def get(self, scope: str, key: str) -> str:
        name = f"{scope}/{key}"
        found = self._settings.secrets.get(name)
        if found is None:
            raise _unset(self._settings, "the secret", name, f"secrets: {{{name}: ${{VARIABLE}}}}")
        return found

    def getBytes(self, scope: str, key: str) -> bytes:
        return self.get(scope, key).encode()


def _unset(settings: ProjectSettings, what: str, name: str, line: str) -> PipelineValueUnsetError:
    return PipelineValueUnsetError(
        f"{what} `{name}` has no value",
        location=caller(settings.root),
        remedies=[f"set it in {settings.spec_to_edit}, for all profiles or for one:   {line}"],
        params={"name": name},
    )


NO_DISPLAY: Callable[..., None] = lambda *_, **__: None  # noqa: E731
"""``display`` of a notebook: a pipeline shows nothing."""
