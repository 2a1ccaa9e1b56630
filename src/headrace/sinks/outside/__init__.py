"""Sinks that write to other systems: a package for each system, and the modules that they share."""
