"""Folders of files as streaming sources."""
