"""A fingerprint changes with what a query means and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.plan.logical import canonical, digest_code
from headrace.storage.layout import locate

FIRST = """\
~Project [value#8, rand(-7729426205726001887) AS r#20, uuid(Some(4452066952966923810)) AS u#23L]
+- ~EventTimeWatermark 4c1d1855-f84c-454d-934d-aca2a3af8620, timestamp#14: timestamp, 1 minutes
   +- ~StreamingRelationV2 org.x.KafkaSourceProvider@5804115d, kafka, [kafka.bootstrap.servers=a:1], [key#9]
"""
SECOND = """\
~Project [value#108, rand(812347123984712) AS r#120, uuid(Some(-12341234123412)) AS u#123L]
+- ~EventTimeWatermark 00000000-f84c-454d-934d-aca2a3af8621, timestamp#114: timestamp, 1 minutes
   +- ~StreamingRelationV2 org.x.KafkaSourceProvider@1234abcd, kafka, [kafka.bootstrap.servers=b:1], [key#109]
"""


def test_ids_objects_seeds_and_brokers_make_no_difference() -> None:
    assert canonical(FIRST, ["kafka sales"]) == canonical(SECOND, ["kafka sales"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("transform(a#1, lambda x_1#2 + 1)", "transform(a#7, lambda x_9#8 + 1)"),
        ("shuffle(array(1), Some(-5896479128915075696))", "shuffle(array(1), Some(123456789))"),
        ("Sample 0.0, 0.5, false, -8263", "Sample 0.0, 0.5, false, 77"),
        (
            "CTERelationDef 3\n CTERelationRef 3, true, [n#3]",
            "CTERelationDef 8\n CTERelationRef 8, true, [n#1]",
        ),
        (
            "CollectMetrics headrace:records:4c1d1855-f84c-454d-934d-aca2a3af8620, [count(1) AS seen#3L], 5",
            "CollectMetrics headrace:records:00000000-f84c-454d-934d-aca2a3af8620, [count(1) AS seen#9L], 17",
        ),
        (
            "SubqueryAlias headrace_read_2\n+- View (`headrace_read_2`, [n#3])\nView (`headrace_read_3`)",
            "SubqueryAlias headrace_read_7\n+- View (`headrace_read_7`, [n#5])\nView (`headrace_read_1`)",
        ),
        ("Range (0, 4, step=1, splits=Some(2))", "Range (0, 4, step=1, splits=None)"),
    ],
)
def test_what_spark_makes_up_makes_no_difference(first: str, second: str) -> None:
    assert canonical(first) == canonical(second)


def test_the_topic_makes_a_difference() -> None:
    assert canonical(FIRST, ["kafka sales"]) != canonical(FIRST, ["kafka returns"])


def test_which_column_is_meant_makes_a_difference() -> None:
    assert canonical("Project [a#1, b#2, a#1]") != canonical("Project [a#1, b#2, b#2]")
    assert canonical("Project [a#1 + 2]") != canonical("Project [a#1 + 3]")


def test_code_is_the_pipelines_own_python(tmp_path: Path) -> None:
    storage = locate(tmp_path / "lake")
    for name in ("a.py", "parts/b.py", "lake/left.py", ".venv/c.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1")
    before = digest_code([tmp_path], storage)
    for name in ("lake/left.py", ".venv/c.py", "notes.txt"):
        (tmp_path / name).write_text("x = 2")
    assert digest_code([tmp_path], storage) == before
    (tmp_path / "parts" / "b.py").write_text("x = 2")
    assert digest_code([tmp_path], storage) != before


def test_a_query_that_is_nothing_but_a_stream_is_known_by_what_it_reads() -> None:
    first, second = "FileSource[/tmp/plan-a1/0000]", "FileSource[/tmp/plan-b2/0000]"
    assert canonical(first, ["changes of orders"]) == canonical(second, ["changes of orders"])
    assert canonical(first, ["changes of orders"]) != canonical(first, ["changes of returns"])
