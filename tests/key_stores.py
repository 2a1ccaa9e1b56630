"""Systems that keep the newest row of each key, with statements that share no code with Headrace's sinks."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import redis

from opensearch_server import OpenSearchServer

_NUMBERS = itertools.count()


class KeyStore(ABC):
    """A place for the rows of one test."""

    format: str

    @abstractmethod
    def options(self) -> dict[str, str]:
        """The options of a sink."""

    @abstractmethod
    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows that a reader finds, by their keys."""


@dataclass
class RedisKeys(KeyStore):
    """The keys of a Redis server with a prefix of their own."""

    address: str
    format = "redis"

    def __post_init__(self) -> None:
        # Characters that have a meaning in patterns.
        self.prefix = f"shop[{next(_NUMBERS)}]*:"

    def options(self) -> dict[str, str]:
        return {"url": self.address, "prefix": self.prefix}

    def connect(self) -> redis.Redis:
        return redis.Redis.from_url(self.address, decode_responses=True)

    def rows(self) -> dict[str, dict[str, Any]]:
        with self.connect() as connection:
            names = [name for name in map(str, connection.scan_iter()) if name.startswith(self.prefix)]
            return {name.removeprefix(self.prefix): json.loads(str(connection.get(name))) for name in names}


@dataclass
class SearchIndex(KeyStore):
    """An index of an OpenSearch server."""

    server: OpenSearchServer
    format = "opensearch"

    def __post_init__(self) -> None:
        self.name = self.server.new_name()

    def options(self) -> dict[str, str]:
        return {"url": self.server.url, "index": self.name}

    def rows(self) -> dict[str, dict[str, Any]]:
        return self.server.documents(self.name)
