"""Kinesis data streams as streaming sources, by a Python data source over boto3."""
