"""Alerts: what is wrong with a pipeline, and who is told of it."""
