"""Make `.venv` hold exactly what the locks say: `python tools/set_up.py runtime|dev`.

Needs only a Python, and does nothing when the locks are those of the last time.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "set-up.log"
BUILD = ROOT / "requirements-build.lock"
LOCKS = {"runtime": ROOT / "requirements.lock", "dev": ROOT / "requirements-dev.lock"}
FIRST_PYTHON = (3, 11)

STORED = "[bdist_wheel]\ncompression = stored\n"
"""PySpark comes as source: 400 MB of jars, which to compress once more would take half a minute."""


def main(kind: str) -> None:
    if sys.version_info < FIRST_PYTHON:
        sys.exit(f"Headrace needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    if kind not in LOCKS:
        sys.exit("usage: set_up.py runtime|dev")
    wanted = {name: digest(lock) for name, lock in LOCKS.items()}
    # Everything that the runtime needs is in the development lock too.
    enough = [name for name in LOCKS if name in (kind, "dev")]
    if works() and any(stamp(name) == wanted[name] for name in enough):
        return
    started = time.monotonic()
    if not works():
        create()
    for name in LOCKS:
        stamp_file(name).unlink(missing_ok=True)
    LOG.write_text("")
    install(started, "--require-hashes", "-r", str(BUILD))
    install(started, "--no-build-isolation", "--require-hashes", "-r", str(LOCKS[kind]))
    install(started, "--no-build-isolation", "--no-deps", "-e", str(ROOT))
    stamp_file(kind).write_text(wanted[kind])
    show(f"python packages ✓   {time.monotonic() - started:.0f} s", last=True)


def digest(lock: Path) -> str:
    """What the environment depends on."""
    import tomllib  # an older Python, which lacks it, has been told so by now

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = json.dumps([project["project"], project["build-system"]], sort_keys=True)
    parts = [sys.version, str(ROOT), installed, BUILD.read_text(), lock.read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def stamp_file(name: str) -> Path:
    return VENV / f"set-up-{name}"


def stamp(name: str) -> str:
    try:
        return stamp_file(name).read_text()
    except OSError:
        return ""


def works() -> bool:
    """Whether there is an environment, and the Python that it was made with is still there."""
    if not PYTHON.exists():
        return False
    asked = [str(PYTHON), "-c", "import sys, pip; print(sys.version)"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == sys.version.strip()


def create() -> None:
    show("python environment")
    try:
        venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(VENV)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(
            f"\nThe environment could not be made: {error}\n"
            "Some systems keep a part of Python apart; on Debian and Ubuntu: apt-get install python3-venv"
        )


def install(started: float, *arguments: str) -> None:
    """Run pip quietly, showing how long it has been at it."""
    config = VENV / "set-up.cfg"
    config.write_text(STORED)
    environment = {**os.environ, "DIST_EXTRA_CONFIG": str(config), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [str(PYTHON), "-m", "pip", "install", "--no-input", "--progress-bar", "off", *arguments]
    with LOG.open("a") as log:
        pip = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
        try:
            while True:
                try:
                    code = pip.wait(1)
                    break
                except subprocess.TimeoutExpired:
                    show(f"python packages   {time.monotonic() - started:.0f} s   (the first time: 0.7 GB)")
        except BaseException:
            pip.terminate()
            pip.wait()
            raise
    if code != 0:
        tail = "\n".join(LOG.read_text(errors="replace").splitlines()[-15:])
        log = LOG.relative_to(ROOT)
        sys.exit(f"\nThe Python packages could not be installed:\n{tail}\n\nAll of it: {log}")


def show(what: str, *, last: bool = False) -> None:
    """One line that changes on a terminal; elsewhere only the first and the last state of it."""
    line = f"Setting up      {what}"
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{line}" + ("\n" if last else ""))
    elif last or "environment" in what:
        sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "runtime")
    except KeyboardInterrupt:
        sys.exit(130)
