"""Processes that outlive the one that starts them."""

from __future__ import annotations

DETACH = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
with open(sys.argv[1], "w") as handle:
    handle.write(str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""A Python program: writes its process id to the first argument and becomes the rest of them.

The process belongs to init, so it neither ends with its starter nor stays behind as a zombie.
"""
