"""Equal streaming reads of a table have one number."""

from __future__ import annotations

from headrace.plan.logical import Leaf
from headrace.plan.sources import share_reads


def leaf(read: int, provider: str, path: str, **options: str) -> Leaf:
    return Leaf(index=read, folder=read, read=read, provider=provider, options={"path": path, **options})


def test_equal_reads_of_a_table_are_one_read() -> None:
    leaves = [
        leaf(0, "delta", "/orders", **{"headrace.location": "a.py:1"}),
        leaf(1, "delta", "/orders", **{"headrace.location": "a.py:2"}),
        leaf(2, "delta", "/orders", skipChangeCommits="true"),
        leaf(3, "delta", "/others"),
        leaf(4, "json", "/landing"),
        leaf(5, "json", "/landing"),
        leaf(6, "parquet", "/stand-in"),
        leaf(7, "parquet", "/stand-in"),
    ]
    found = share_reads(leaves, lambda path: path == "/stand-in")
    assert [one.read for one in found] == [0, 0, 2, 3, 4, 5, 6, 6]
    assert [one.index for one in found] == [one.index for one in leaves]
