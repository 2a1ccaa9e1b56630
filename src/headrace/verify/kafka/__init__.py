"""Kafka topics: what the brokers hold, compared with what flows have read."""
