"""Refreshes of materialized views that cost what has changed: which are possible, and the rows that they
remove and add."""
