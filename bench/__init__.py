"""Headrace beside plain Structured Streaming, on the same machine, broker and jars, in one run.

Each is run alone with ``python -m bench.latency`` (``catchup``, ``noop``, ``tools``, ``demo``), all
with ``make bench``; ``--quick`` makes a short one, to see that it works. Results are printed and kept
in ``bench/results``.
"""

import os

# A benchmark measures a JVM of its own; `loop` measures the engine.
os.environ["HEADRACE_ENGINE"] = "off"
