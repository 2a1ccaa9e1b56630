"""Alerts: rules on the status of a pipeline, and messages if one of them fires."""
