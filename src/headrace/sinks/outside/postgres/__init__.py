"""PostgreSQL: Spark's tasks copy rows into a staging table, and one transaction applies them.

The same transaction writes the state of the flows (`headrace_sinks`) and what the batch has read
(`headrace_batches`). Both tables are in the schema of the table that gets the rows.
"""
