"""SQL statements of `headrace sql`, one after the other: batch queries, and streams."""
