"""Views that are refreshed by what has changed, beside views that are computed as a whole.

A pipeline copies a table of facts; each case is one query as three views, with the policies full, incremental
and auto. After each change of the facts (0.2% of the rows) the views are refreshed one after the other in one
JVM, in turns; the first turn warms up. The seconds are those of the refresh, without plan and Spark's start.
"merge": counts and sums by a key with many values, of new rows; "changed": of rows that were updated.
"dates": extremes by day, where rows of the newest day were updated, so that files are left out. "distinct":
count distinct by a key, where rows were deleted. "window": the top three of each group of a day, of new rows.
"Spark's pipelines": the same query as a view of `pyspark.pipelines`, which computes it as a whole.
"continuous": the view of "merge" in a continuous run, after each commit of 20,000 new rows. The seconds
should not grow with the table: compare ``--cases continuous --rows 1000000`` with more rows.
"""

from __future__ import annotations

import queue
import statistics
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.results import expect, keep, ratio, rows_of, table
from bench.views_side import SparkPipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.model.events import ViewRefreshed

_SPEC = "name: bench\nstorage: ./lake\nviews:\n  interval: 1 second\nlibraries:\n  - file: views.py\n"
_FACTS = """\
import headrace as hr
from headrace import spark


@hr.table(cluster_by=["day"], table_properties={{"delta.enableDeletionVectors": "true"}})
def facts():
    return spark.readStream.format("delta").load("{source}")
"""
_VIEW = """

@hr.materialized_view(name="{name}", refresh_policy="{policy}")
def query():
    return spark.sql("{query}")
"""
QUERIES = {
    "merge": "SELECT customer, COUNT(*) AS n, COUNT(amount) AS na, SUM(amount) AS s FROM facts "
    "GROUP BY customer",
    "dates": "SELECT day, shop, MIN(amount) AS lo, MAX(amount) AS hi FROM facts GROUP BY day, shop",
    "distinct": "SELECT shop, item % 1000 AS kind, COUNT(DISTINCT customer) AS u FROM facts "
    "GROUP BY shop, item % 1000",
    "window": "SELECT * FROM (SELECT day, shop, id, rank() OVER (PARTITION BY day, shop "
    "ORDER BY amount DESC, id) AS r FROM facts) WHERE r <= 3",
}
POLICIES = ("full", "incremental", "auto")
_DAYS = 100
_COMMIT = 20_000
"""New rows of each commit in the continuous run."""
_TIMEOUT_S = 300.0


def facts(first: int, end: int, rows: int, *, newest: bool) -> str:
    """Rows of the table of facts: about six for each customer. `newest`: of the last day only."""
    day = _DAYS - 1 if newest else f"CAST(id * {_DAYS} DIV {rows} AS INT)"
    return (
        f"SELECT id, date_add(DATE '2026-01-01', {day}) AS day, "
        f"pmod(xxhash64(id), {max(rows // 6, 1)}) AS customer, "
        "CAST(pmod(xxhash64(id, 1), 50) AS INT) AS shop, pmod(xxhash64(id, 2), 20000) AS item, "
        f"CAST(pmod(xxhash64(id, 3), 100000) AS DECIMAL(12, 2)) / 100 AS amount FROM range({first}, {end})"
    )


class Bench:
    """The tables of facts, and a pipeline with views over the second one."""

    def __init__(
        self, spark: SparkSession, root: Path, rows: int, share: float, queries: Sequence[str]
    ) -> None:
        self.spark, self.root, self.rows = spark, root, rows
        self.changed = max(int(rows * share), 10)
        self.source, self.next = root / "source", rows
        self.table = root / "lake" / "tables" / "default" / "facts"
        spark.sql(f"CREATE TABLE delta.`{self.source}` USING delta AS {facts(0, rows, rows, newest=False)}")
        views = [
            _VIEW.format(name=f"{case}_{policy}", policy=policy, query=query)
            for case, query in QUERIES.items()
            if case in queries
            for policy in POLICIES
        ]
        (root / "headrace.yml").write_text(_SPEC, encoding="utf-8")
        (root / "views.py").write_text(_FACTS.format(source=self.source) + "".join(views), encoding="utf-8")

    def run(self, *datasets: str) -> dict[str, ViewRefreshed]:
        from headrace import Pipeline
        from headrace.model.events import ViewRefreshed

        found: dict[str, ViewRefreshed] = {}

        def watch(event: Any) -> None:
            if isinstance(event, ViewRefreshed):
                found[event.dataset.name] = event

        with Pipeline.load(self.root) as pipeline:
            result = pipeline.run(datasets, emit=watch)
        if result.errors:
            raise SystemExit(str([error.to_dict() for error in result.errors]))
        return found

    def produce(self, count: int, *, newest: bool = False) -> None:
        first, self.next = self.next, self.next + count
        rows = facts(first, self.next, self.rows, newest=newest)
        self.spark.sql(f"INSERT INTO delta.`{self.source}` {rows}")

    def append(self, *, newest: bool = False) -> None:
        self.produce(self.changed, newest=newest)
        self.run("facts")

    def run_continuously(self, turns: int) -> list[ViewRefreshed]:
        """Refresh the view of "merge" in a continuous run, after each of some commits of new rows."""
        from headrace import Pipeline
        from headrace.model.events import ViewRefreshed
        from headrace.run.stop import StopSignal

        refreshed: queue.Queue[ViewRefreshed] = queue.Queue()
        stop = StopSignal()

        def watch(event: Any) -> None:
            if isinstance(event, ViewRefreshed):
                refreshed.put(event)

        self.run("merge_incremental")
        with Pipeline.load(self.root) as pipeline:
            names = ("facts", "merge_incremental")
            running = threading.Thread(
                target=lambda: pipeline.run(names, continuous=True, emit=watch, stop=stop)
            )
            running.start()
            found = []
            for _ in range(turns):
                self.produce(_COMMIT)
                found.append(refreshed.get(timeout=_TIMEOUT_S))
            stop.request()
            running.join(_TIMEOUT_S)
        return found

    def update(self, *, newest: bool = False) -> None:
        day = f" AND day = date_add(DATE '2026-01-01', {_DAYS - 1})" if newest else ""
        some = (
            f"pmod(xxhash64(id, {self.next}), {self.rows}) < {self.changed * (_DAYS if newest else 1)}{day}"
        )
        self.next += 1
        self.spark.sql(f"UPDATE delta.`{self.table}` SET amount = amount + 1 WHERE {some}")

    def delete(self) -> None:
        some = f"pmod(xxhash64(id, {self.next}), {self.rows}) < {self.changed}"
        self.next += 1
        self.spark.sql(f"DELETE FROM delta.`{self.table}` WHERE {some}")

    def check(self, case: str) -> None:
        for policy in POLICIES[1:]:
            what = f"{case}, {policy}"
            expect(what, rows_of(self._view(case, policy)), rows_of(self._view(case, "full")))

    def _view(self, case: str, policy: str) -> Path:
        return self.table.parent / f"{case}_{policy}"


CASES: dict[str, tuple[str, Callable[[Bench], None]]] = {
    "merge": ("merge", Bench.append),
    "changed": ("merge", Bench.update),
    "dates": ("dates", lambda one: one.update(newest=True)),
    "distinct": ("distinct", Bench.delete),
    "window": ("window", lambda one: one.append(newest=True)),
}
CONTINUOUS = "continuous"


@click.command()
@click.option("--rows", default=10_000_000, show_default=True, help="Rows of the table of facts.")
@click.option("--share", default=0.002, show_default=True, help="The share of the rows that a change has.")
@click.option("--turns", default=5, show_default=True)
@click.option("--sdp/--no-sdp", default=True, show_default=True, help="Beside Spark's own pipelines.")
@click.option("--cases", default=",".join((*CASES, CONTINUOUS)), show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(rows: int, share: float, turns: int, sdp: bool, cases: str, quick: bool) -> None:
    """Seconds of a refresh by what has changed, beside the whole view."""
    from headrace.runtime.session import open_spark

    rows, turns = (100_000, 1) if quick else (rows, turns)
    names = cases.split(",")
    queries = tuple(dict.fromkeys("merge" if name == CONTINUOUS else CASES[name][0] for name in names))
    found: dict[str, dict[str, list[tuple[float, str]]]] = {}
    continuous: list[ViewRefreshed] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        running = open_spark("bench", memory="4g", shared=False)
        bench = Bench(running.spark, Path(name), rows, share, queries)
        loaded = bench.run()
        others = SparkPipelines(bench.root, bench.table, QUERIES) if sdp else None
        for case in queries:
            click.echo(f"load, {case}: {loaded[f'{case}_full'].duration_s:.2f} s")
        for case in names:
            if case == CONTINUOUS:
                # The first refreshes warm up.
                continuous = bench.run_continuously(3 + turns)[3:]
                bench.run("merge_full", "merge_auto")
                bench.check("merge")
                continue
            query, change = CASES[case]
            seconds: dict[str, list[tuple[float, str]]] = {policy: [] for policy in POLICIES}
            if others is not None:
                seconds["Spark's pipelines"] = []
            found[case] = seconds
            for turn in range(1 + turns):
                change(bench)
                # In turns: what comes first reads the change from the disk.
                for policy in POLICIES[turn % 3 :] + POLICIES[: turn % 3]:
                    refreshed = bench.run(f"{query}_{policy}")[f"{query}_{policy}"]
                    if turn:
                        seconds[policy].append((refreshed.duration_s, refreshed.strategy))
                if others is not None:
                    spent = others.refresh(query)
                    if turn:
                        seconds["Spark's pipelines"].append((spent, "full"))
            bench.check(query)
        if others is not None:
            others.close()
        running.stop()
    lines = []
    for case, by_policy in found.items():
        base = statistics.median(one for one, _ in by_policy["full"])
        for policy, measured in by_policy.items():
            median = statistics.median(one for one, _ in measured)
            strategies = ", ".join(sorted({strategy for _, strategy in measured}))
            lines.append((f"{case}, {policy}", strategies, median, ratio(median, base)))
    click.echo(f"{rows:,} rows, changes of {bench.changed:,}")
    table(("view", "strategy", "seconds", "it / full"), lines)
    seconds_of = [one.duration_s or 0.0 for one in continuous]
    if continuous:
        strategies = ", ".join(sorted({one.strategy for one in continuous}))
        median, most = statistics.median(seconds_of), max(seconds_of)
        click.echo(f"continuous, {_COMMIT:,} rows each: {median:.2f} s, at most {most:.2f} s ({strategies})")
    keep("views", {"rows": rows, "changed": bench.changed, "seconds": found, CONTINUOUS: seconds_of})


if __name__ == "__main__":
    main()
