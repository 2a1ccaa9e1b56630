"""Time of the commands of a day: look, change, look again; each with a JVM of its own, and in the engine.

The pipeline is the one that `headrace init` writes: three tables, one after another. Before each triggered
run one record is produced. The pipeline with many tables is planned only. The first command of a day is
`headrace plan` without a running engine, with and without the JVM's start-up cache.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import click

from bench.load import PARTITIONS, broker_in
from bench.processes import HEADRACE, timed
from bench.results import expect, keep, ratio, rows_of, table
from headrace.project.template.files import TOPIC, write_template
from headrace.runtime import aot
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import find_java

_MANY = 100
_FIRST_TIMES = 3
"""How many times the first command of a day is measured. Each time, an engine starts."""


@click.command()
@click.option("--times", default=10, show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
@click.option("--with-engine-only", is_flag=True, help="Leave out the commands with a JVM of their own.")
def main(times: int, quick: bool, with_engine_only: bool) -> None:
    """Seconds of each command, from its start to its end."""
    times, here = 1 if quick else times, Path.cwd()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, broker_in() as broker:
        folder, log = Path(name), Path(name) / "log"
        broker.create_topic(TOPIC, PARTITIONS)
        broker.start()
        shop = folder / "shop"
        write_template(shop)
        many = _write(folder / "many", _many_tables(10 if quick else _MANY))
        environment = {
            "HEADRACE_BROKER_DIR": str(broker.directory),
            "HEADRACE_ENGINE_DIR": str(folder / "engines"),
            "HEADRACE_AOT": "use",
            "CI": "",
            # The modules are compiled, as those of an installed package are.
            "PYTHONDONTWRITEBYTECODE": "",
        }
        produce = [*HEADRACE, "produce", TOPIC, "--sample", "--project", str(shop), "--limit"]
        records = 1000
        timed([*produce, str(records)], log, environment)
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        commands = {
            "plan": [*HEADRACE, "plan", "--project", str(shop)],
            "preview": [*HEADRACE, "preview", "gold", "--project", str(shop)],
            "run, one record": [*HEADRACE, "run", "--project", str(shop)],
            "run, nothing new": [*HEADRACE, "run", "--project", str(shop)],
            "sql": [*HEADRACE, "sql", "-e", "select 1", "--project", str(shop)],
            "test of init": [*pytest, str(shop / "tests")],
            f"plan, {10 if quick else _MANY} tables": [*HEADRACE, "plan", "--project", str(many)],
        }
        sides = ("on",) if with_engine_only else ("off", "on")
        found: dict[str, dict[str, list[float]]] = {side: {what: [] for what in commands} for side in sides}
        stop = [*HEADRACE, "engine", "stop"]
        try:
            _make_cache(log)
            first = {
                cache: statistics.median(
                    _first(commands["plan"], stop, log, {**environment, "HEADRACE_AOT": cache})
                    for _ in range(1 if quick else _FIRST_TIMES)
                )
                for cache in ("off", "use")
            }
            for side in sides:
                timed(commands["run, one record"], log, {**environment, "HEADRACE_ENGINE": side})
            for number in range(times + 1):
                for side in sides:
                    own = {**environment, "HEADRACE_ENGINE": side}
                    for what, command in commands.items():
                        if what == "run, one record":
                            timed([*produce, "1"], log, environment)
                            records += 1
                        os.chdir(shop)
                        took = timed(command, log, own)
                        if number:
                            # The first round warms.
                            found[side][what].append(took)
        finally:
            timed(stop, log, environment)
            os.chdir(here)
        expect("the first table", rows_of(next(shop.glob("lake/tables/*/bronze"))), records)
    medians = {side: {what: statistics.median(all_) for what, all_ in found[side].items()} for side in sides}
    rows = [
        (what, *(medians[side][what] for side in sides), ratio(medians["on"][what], medians[sides[0]][what]))
        for what in commands
    ]
    heads = ("engine",) if with_engine_only else ("own JVM", "engine")
    table(("median s", *heads, "engine / own JVM"), rows)
    firsts = (("no start-up cache", first["off"]), ("with the start-up cache", first["use"]))
    table(("first plan of a day", "median s"), firsts)
    keep("loop", {"times": times, "first_s": first, "seconds": found})


def _make_cache(log: Path) -> None:
    java = find_java()
    cache = aot.cache_path(java, ensure_jars("spark"))
    if java.major >= aot.FIRST_JAVA and not cache.is_file():
        timed([*aot.training_command(cache), "--now"], log)


def _first(command: list[str], stop: list[str], log: Path, environment: dict[str, str]) -> float:
    """The seconds of a command that finds no running engine and starts one."""
    timed(stop, log, environment)
    return timed(command, log, {**environment, "HEADRACE_ENGINE": "on"})


def _write(folder: Path, files: dict[str, str]) -> Path:
    for place, text in files.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def _many_tables(count: int) -> dict[str, str]:
    """A chain of tables, each tenth of which begins anew."""
    lines = ["import headrace as hr", "from headrace import spark", ""]
    for number in range(count):
        source = f"spark.readStream.table('t{number - 1}')"
        first = "spark.readStream.format('rate').load().selectExpr('value AS id', 'timestamp AS at')"
        lines += [
            "@hr.table",
            f"def t{number}():",
            f"    rows = {first if number % 10 == 0 else source}",
            f"    return rows.selectExpr('id', 'at', 'id * 2 AS c{number}')",
            "",
        ]
    spec = {"name": "many", "storage": "./lake", "libraries": [{"file": "many.py"}]}
    return {"headrace.yml": json.dumps(spec), "many.py": "\n".join(lines)}


if __name__ == "__main__":
    main()
