"""Downloads the jars that are missing in the cache."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import JarCorruptError, JarDownloadError
from headrace.runtime.jars import (
    SETTINGS_VARIABLE,
    Jar,
    JarCache,
    JarSet,
    find_java,
    locked_jars,
    read_failure,
    start_ivy,
)

_PARALLEL = 4  # Ivy sends one request at a time, and mostly waits for small answers
_ATTEMPTS = 2  # A second attempt, for connections that break; jars that have arrived are not requested again
_POLL_S = 0.1


@dataclass(frozen=True)
class FetchProgress:
    """The progress of a download; the bytes include those of unfinished jars."""

    jars_done: int
    jars_total: int
    bytes_done: int
    bytes_total: int


Watcher = Callable[[FetchProgress], None]


def ensure_jars(
    *sets: JarSet, cache: JarCache | None = None, watcher: Watcher | None = None
) -> tuple[Path, ...]:
    """Returns the paths of all jars of these sets; downloads missing jars. `cache`: by default that of the
    user. `watcher`: gets the progress; by default, standard error shows it."""
    store = cache or JarCache()
    jars = locked_jars(*sets)
    if store.missing(jars):
        with store.locked():
            needed = store.recheck(store.missing(jars))
            if needed:
                store.remove_leftovers()
                with _show_fetch() if watcher is None else nullcontext(watcher) as shown:
                    _fetch(store, needed, shown)
    return tuple(store.path(jar) for jar in jars)


def _fetch(store: JarCache, needed: Sequence[Jar], watcher: Watcher) -> None:
    missing = tuple(needed)
    for attempt in range(1, _ATTEMPTS + 1):
        with tempfile.TemporaryDirectory(dir=store.folder, prefix=".fetch-") as folder:
            run = _Run(store, needed, missing, Path(folder), watcher)
            missing = run.finish()
            if not missing:
                return
            if attempt == _ATTEMPTS:
                raise run.error(missing)


class _Run:
    """Ivy processes that run at the same time, each with some of the jars."""

    def __init__(
        self, store: JarCache, needed: Sequence[Jar], missing: Sequence[Jar], folder: Path, watcher: Watcher
    ) -> None:
        self._store = store
        self._needed = needed
        self._folder = folder
        self._watcher = watcher
        self._waiting = {
            jar: folder / str(share) for share, part in enumerate(_shares(missing)) for jar in part
        }
        self._sums: dict[Jar, str] = {}
        java = find_java()
        self._processes = [
            start_ivy(java, [jar.coordinate for jar in part], folder / str(share))
            for share, part in enumerate(_shares(missing))
        ]

    def finish(self) -> tuple[Jar, ...]:
        """Installs jars as they arrive, until Ivy ends; returns the jars that did not arrive."""
        try:
            while any(process.poll() is None for process in self._processes):
                self._collect()
                time.sleep(_POLL_S)
            self._collect()
        finally:
            for process in self._processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        return tuple(self._waiting)

    def error(self, missing: Sequence[Jar]) -> JarCorruptError | JarDownloadError:
        jar = missing[0]
        name = str(jar.coordinate)
        if jar in self._sums:
            return JarCorruptError(
                f"{name} has another sha256 checksum than the lock",
                facts=[f"expected {jar.sha256}", f"found    {self._sums[jar]}", "the file was not used"],
                remedies=[
                    f"ask the administrator of the mirror, or name another mirror in {SETTINGS_VARIABLE}",
                    "headrace doctor",
                ],
                params={"artifact": name, "expected": jar.sha256, "arrived": self._sums[jar]},
            )
        log = self._waiting[jar] / "ivy.log"
        output = log.read_text(errors="replace") if log.exists() else ""
        address, reasons = read_failure(output, jar.coordinate)
        facts = [f"tried {address}"] if address else []
        facts += reasons
        facts.append(
            f"{len(self._needed) - len(missing)} of {len(self._needed)} jars were downloaded and are kept"
        )
        return JarDownloadError(
            f"{name} could not be downloaded",
            facts=facts,
            remedies=[
                "check the network and repeat the command; only the missing jars are downloaded",
                f"behind a mirror, name your ivysettings.xml:   export {SETTINGS_VARIABLE}=./ivysettings.xml",
                "headrace doctor",
            ],
            params={
                "artifact": name,
                "address": address,
                "missing": [str(jar.coordinate) for jar in missing],
            },
        )

    def _collect(self) -> None:
        under_way = 0
        for share in set(self._waiting.values()):
            under_way += sum(_size(part) for part in share.glob("cache/**/*.part"))
        for jar, share in list(self._waiting.items()):
            for arrived in share.glob(f"cache/{jar.coordinate.group}/**/{jar.coordinate.jar_name}"):
                if _size(arrived) != jar.size and self._running(share):
                    continue
                self._take(jar, arrived)
            # The settings of a mirror can give Ivy's cache another layout.
            retrieved = share / "jars" / jar.file_name
            if jar in self._waiting and not self._running(share) and retrieved.is_file():
                self._take(jar, retrieved)
        done = [jar for jar in self._needed if jar not in self._waiting]
        total = sum(jar.size for jar in self._needed)
        bytes_done = min(total, sum(jar.size for jar in done) + under_way)
        self._watcher(FetchProgress(len(done), len(self._needed), bytes_done, total))

    def _take(self, jar: Jar, arrived: Path) -> None:
        if jar not in self._waiting or jar in self._sums:
            return
        found = self._store.install(jar, arrived)
        if found == jar.sha256:
            del self._waiting[jar]
        else:
            self._sums[jar] = found

    def _running(self, share: Path) -> bool:
        return self._processes[int(share.name)].poll() is None


def _shares(jars: Sequence[Jar]) -> list[list[Jar]]:
    """Splits jars into groups with about the same number of bytes and requests."""
    count = min(_PARALLEL, max(1, len(jars) // 3))
    ordered = sorted(jars, key=lambda jar: -jar.size)
    return [ordered[index::count] for index in range(count)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


_PLAIN_INTERVAL_S = 5.0

FETCHING = threading.Event()  # set while the terminal shows the progress of a download


@contextmanager
def _show_fetch() -> Iterator[Watcher]:
    """Shows a progress bar on a terminal, and plain lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain(console.file.write)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    FETCHING.set()
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("Fetching jars", total=None)

            def update(now: FetchProgress) -> None:
                text = f"Fetching jars {now.jars_done}/{now.jars_total}"
                progress.update(task, description=text, completed=now.bytes_done, total=now.bytes_total)

            yield update
    finally:
        FETCHING.clear()


def _plain(write: Callable[[str], object]) -> Watcher:
    last_s, finished = 0.0, False

    def update(now: FetchProgress) -> None:
        nonlocal last_s, finished
        is_last, now_s = now.jars_done == now.jars_total, time.monotonic()
        if finished or (not is_last and now_s - last_s < _PLAIN_INTERVAL_S):
            return
        last_s, finished = now_s, is_last
        megabytes = f"{now.bytes_done / 1e6:.0f} of {now.bytes_total / 1e6:.0f} MB"
        write(f"Fetching jars: {now.jars_done} of {now.jars_total}, {megabytes}\n")

    return update
