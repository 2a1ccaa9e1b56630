"""Sinks outside the lake: one module for each system, and what they share."""
