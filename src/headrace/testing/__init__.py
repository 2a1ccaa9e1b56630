"""Pipelines on rows in place of their sources: real queries, real tables, no broker.

Example:
    >>> from headrace.testing import run
    >>> tables = run("shop", {"orders": [[{"id": 1, "amount": 5.0}]]})  # doctest: +SKIP
    >>> tables["revenue"]  # doctest: +SKIP
"""

from __future__ import annotations

from headrace.testing.rows import Batches, Record
from headrace.testing.source_overrides import run
from headrace.testing.tables import Tables

__all__ = ["Batches", "Record", "Tables", "run"]
