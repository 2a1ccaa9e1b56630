"""Kafka topics as streaming sources, and what tools read from and write to topics."""
