"""Make `tests/opensearch.lock.json` again: the jars of the OpenSearch server that tests start.

Run by maintainers: `python tools/lock_opensearch.py`. Not every version of OpenSearch has all of these
artifacts in the registry; 3.4.0 has.
"""

from __future__ import annotations

from pathlib import Path

from lock_jars import lock_text, resolve

VERSION = "3.4.0"
SERVER = [
    f"org.opensearch:opensearch:{VERSION}",
    f"org.opensearch:opensearch-agent-bootstrap:{VERSION}",
    f"org.opensearch:opensearch-plugin-classloader:{VERSION}",
    "org.apache.logging.log4j:log4j-core:2.21.0",  # that of the other artifacts of Log4j
]
MODULES = {"transport-netty4": "transport-netty4-client", "reindex": "reindex-client"}
"""The artifacts of OpenSearch's modules: its HTTP server, and changes by a query."""
LOCK = Path(__file__).parents[1] / "tests/opensearch.lock.json"


def main() -> None:
    sets = {"server": resolve(SERVER, transitive=True)}
    for name, artifact in MODULES.items():
        found = resolve([f"org.opensearch.plugin:{artifact}:{VERSION}"], transitive=True)
        # OpenSearch does not start if a module has a class of the server once more.
        sets[name] = [entry for entry in found if entry not in sets["server"]]
    LOCK.write_text(lock_text(sets))


if __name__ == "__main__":
    main()
