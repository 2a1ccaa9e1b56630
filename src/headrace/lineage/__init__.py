"""The lineage of columns, as a plan or a run has recorded it, and OpenLineage's events of it."""
