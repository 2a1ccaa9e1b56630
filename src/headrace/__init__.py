"""Kafka topics, files and change feeds into Delta tables: declared, exactly once, proven."""
