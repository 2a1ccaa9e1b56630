"""The folders that all pipelines of a user share."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "HEADRACE_CACHE"
LOGS_VARIABLE = "HEADRACE_LOGS"
BROKER_VARIABLE = "HEADRACE_BROKER_DIR"


def cache_folder() -> Path:
    """Returns the folder of jars, trust stores, AOT caches and logs; it can be deleted at any time."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("headrace"))


def logs_folder() -> Path:
    """Returns the folder of logs; it can be deleted at any time."""
    chosen = os.environ.get(LOGS_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else cache_folder() / "logs"


def broker_folder() -> Path:
    """Returns the folder of the embedded broker's state and data."""
    chosen = os.environ.get(BROKER_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_data_dir("headrace")) / "broker"
