"""Where Headrace keeps what all pipelines of a user share."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "HEADRACE_CACHE"
LOGS_VARIABLE = "HEADRACE_LOGS"
BROKER_VARIABLE = "HEADRACE_BROKER_DIR"


def cache_folder() -> Path:
    """Jars, trust stores, AOT caches and logs: all of it can be deleted at any time."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("headrace"))


def logs_folder() -> Path:
    """Logs of updates, of Spark and of failures; they can be deleted at any time."""
    chosen = os.environ.get(LOGS_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else cache_folder() / "logs"


def broker_folder() -> Path:
    """The embedded broker's state and data."""
    chosen = os.environ.get(BROKER_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_data_dir("headrace")) / "broker"
