"""`headrace maintain --every` repeats the care of the tables, and ends cleanly."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from checked_json import read_json
from waiting import DEADLINE_S


def test_the_command_repeats_until_a_signal_comes(tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\nlibraries: [{file: orders.py}]\n")
    (tmp_path / "orders.py").touch()
    write_deltalake(str(tmp_path / "lake" / "tables" / "default" / "orders"), pa.table({"id": [1]}))
    command = [sys.executable, "-m", "headrace", "maintain", "--every", "1s", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            (line,) = read_json("maintain", process.stdout.readline())
            (found,) = line["tables"]
            assert (found["dataset"], found["steps"]) == ("default.orders", [])
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
