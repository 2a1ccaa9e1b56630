"""Source locations, and what Python and SQL code refers to."""
