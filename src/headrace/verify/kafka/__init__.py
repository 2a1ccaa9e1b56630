"""Kafka topics: compares the records of the brokers with the offsets that flows have read."""
