"""Fetch the scripts of other projects that the dashboard and its tests use: `python tools/fetch_assets.py`.

Run by maintainers, with npm as it is set up. Checks each file against `assets.lock.json`; with `--lock`,
writes the sums of new versions there. Nothing is built, and no browser fetches anything from another host.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "tools/assets.lock.json"
STATIC, TESTS = "src/headrace/dashboard/static", "tests/browser"
ASSETS: dict[str, dict[str, str]] = {
    "htmx.org@2.0.11": {"dist/htmx.min.js": f"{STATIC}/htmx.min.js", "LICENSE": f"{STATIC}/htmx.LICENSE.txt"},
    "uplot@1.6.32": {
        "dist/uPlot.iife.min.js": f"{STATIC}/uplot.min.js",
        "dist/uPlot.min.css": f"{STATIC}/uplot.min.css",
        "LICENSE": f"{STATIC}/uplot.LICENSE.txt",
    },
    "@dagrejs/dagre@3.1.3": {
        "dist/dagre.min.js": f"{STATIC}/dagre.min.js",
        "LICENSE": f"{STATIC}/dagre.LICENSE.txt",
        "dist/dagre.min.js.LEGAL.txt": f"{STATIC}/dagre.LEGAL.txt",
    },
    "axe-core@4.14.1": {"axe.min.js": f"{TESTS}/axe.min.js", "LICENSE": f"{TESTS}/axe.LICENSE.txt"},
}
"""The files of each package of npm, and where they belong."""


def main(*, lock: bool) -> None:
    sums: dict[str, str] = {} if lock else json.loads(LOCK.read_text())
    for package, files in ASSETS.items():
        with tempfile.TemporaryDirectory() as folder:
            packed = subprocess.run(
                ["npm", "pack", "--silent", "--pack-destination", folder, package],
                check=True,
                capture_output=True,
                text=True,
            )
            with tarfile.open(Path(folder) / packed.stdout.split()[-1]) as archive:
                for inside, target in files.items():
                    member = archive.extractfile(f"package/{inside}")
                    if member is None:
                        sys.exit(f"{package} has no {inside}")
                    data = member.read()
                    found = hashlib.sha256(data).hexdigest()
                    if sums.setdefault(target, found) != found:
                        sys.exit(f"{target}: {package} has another sum than the lock")
                    path = ROOT / target
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
    LOCK.write_text(json.dumps(sums, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(lock="--lock" in sys.argv[1:])
