"""Two processes change one file at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace.storage.layout import locate


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = locate(str(tmp_path)) / "pins.json"

    def add(number: int) -> None:
        def change(held: Any) -> list[int]:
            return [*(held or ()), number]

        file.update_json(change)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert sorted(file.read_json()) == list(range(40))
