"""Folders that belong to the user, not to a pipeline; temporary folders, and files that replace others."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import IO

import platformdirs

CACHE_VARIABLE = "HEADRACE_CACHE"
LOGS_VARIABLE = "HEADRACE_LOGS"
BROKER_VARIABLE = "HEADRACE_BROKER_DIR"
OTHER_BROKER = "/var/tmp/headrace-broker"
"""The folder of a broker that remedies name where the chosen folder cannot be written."""
NAME_BROKER = f"name another in the spec:   runtime: {{broker: {OTHER_BROKER}}}"
ENGINE_VARIABLE = "HEADRACE_ENGINE_DIR"


def cache_folder() -> Path:
    """The folder of jars, trust stores, AOT caches and logs; it can be deleted at any time."""
    return chosen_folder(CACHE_VARIABLE) or Path(platformdirs.user_cache_dir("headrace"))


def logs_folder() -> Path:
    """The folder of logs; it can be deleted at any time."""
    return chosen_folder(LOGS_VARIABLE) or cache_folder() / "logs"


def shared_broker_folder() -> Path:
    """The folder of the embedded broker that is used outside of pipelines."""
    return Path(platformdirs.user_data_dir("headrace")) / "broker"


def broker_folder() -> Path:
    """The folder of the embedded broker for commands without a pipeline."""
    return chosen_folder(BROKER_VARIABLE) or shared_broker_folder()


def chosen_folder(variable: str) -> Path | None:
    chosen = os.environ.get(variable)
    return Path(chosen).expanduser().absolute() if chosen else None


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in a folder of a pipeline. Folders that the user has set belong to where the user is."""
    for variable in (CACHE_VARIABLE, LOGS_VARIABLE, BROKER_VARIABLE, ENGINE_VARIABLE):
        if (chosen := chosen_folder(variable)) is not None:
            os.environ[variable] = str(chosen)
    with chdir(folder):
        yield


def replace_file(path: Path, content: str | bytes, *, is_private: bool = False) -> None:
    """Write a file; a reader finds the old or the new content. `is_private`: whether only this user can read
    it, from its beginning on."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def is_locked(file: Path, *, by_java: bool = False) -> bool:
    """Return whether a process has locked a file. `by_java`: with a lock of Java, another kind of lock."""
    lock = fcntl.lockf if by_java else fcntl.flock
    try:
        # On NFS, only a file that is open for writing can be locked by one process alone.
        with file.open("r+b") as stream:
            lock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


_PREFIX = "headrace-spark-"
_LOCK = "held"


class Scratch:
    """A temporary folder of this process; making one removes the folders of processes that were killed. A
    lock shows that the owner is alive. Process ids do not, where containers share a temporary folder."""

    def __init__(self) -> None:
        others = list(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
        # The state of a killed stream can be many small files; Spark starts meanwhile.
        threading.Thread(target=_remove_abandoned, args=(others,), daemon=True).start()
        self.path, self._held = _make_folder()

    def folder(self, name: str) -> Path:
        """Returns a subfolder; makes it if it is missing."""
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._held.close()


def _make_folder() -> tuple[Path, IO[str]]:
    """Returns a new folder, and its file, which is locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        held = (path / _LOCK).open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
        if (path / _LOCK).exists():
            return path, held
        # Another process has removed the folder as abandoned before the file was locked.
        held.close()


def _remove_abandoned(folders: Iterable[Path]) -> None:
    for folder in folders:
        try:
            with (folder / _LOCK).open("r+") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # Its owner holds it, it belongs to another user, or it was removed meanwhile.
            continue
