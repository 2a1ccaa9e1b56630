"""The command line's boundary: whatever happens ends in one clear message and an exit code."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import click
import pytest

from headrace.cli import main
from headrace.cli.main import COMMANDS, GROUPS, load_command, replace_unencodable
from headrace.cli.output import RedactingFormatter, Result, TextOutput
from headrace.cli.verb import Verb, VerbGroup
from headrace.errors import RefusedError, SourceLocation, UsageError
from headrace.model.secrets import Redactor
from headrace.project.pipeline import Pipeline
from object_server import ObjectServer

NOTHING_CHECKED: dict[str, Any] = {"ok": True, "checks": []}
"""What a command in place of `headrace doctor` returns."""


class Called(Protocol):
    exit_code: int
    out: str
    err: str
    data: Any


class Call(Protocol):
    def __call__(self, *arguments: str) -> Called: ...


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put an exception in the list, and `headrace doctor` raises it."""
    raised: list[Any] = []

    def callback(**_: object) -> Result:
        if raised:
            raise raised[0]
        return Result(data=NOTHING_CHECKED, text="fine", exit_code=3)

    command = Verb("doctor", callback=callback, params=[click.Option(["--json", "--debug"], is_flag=True)])
    monkeypatch.setattr(main.LazyCommands, "get_command", lambda *_: command)
    return raised


def test_help_lists_every_command_and_loads_none() -> None:
    code = (
        "import sys; from headrace.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'pyspark', 'py4j', 'deltalake', 'rich', 'confluent_kafka', 'pydantic', 'ruamel'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert not [name for name in sys.modules if name.startswith('headrace.cli.commands.')]"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    for name, text in COMMANDS.items():
        assert name in done.stdout
        assert text in done.stdout


def test_help_groups_the_commands(headrace: Call) -> None:
    text = headrace("--help").out
    titles = [line.removesuffix(":") for line in text.splitlines() if re.fullmatch(r"\S.*:", line)]
    assert titles == ["Options", *GROUPS, "Start here"]
    lines = [line for line in text.splitlines() if line.lstrip().split("  ")[0].strip() in COMMANDS]
    assert len({line.index(COMMANDS[line.split()[0]]) for line in lines}) == 1, "one column for all texts"


def test_a_partial_run_has_one_documented_spelling(headrace: Call) -> None:
    assert "--refresh" not in headrace("run", "--help").out.replace("--full-refresh", "")
    assert headrace("refresh", "--help").exit_code == 0


def test_help_is_fast() -> None:
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        code = "from headrace.cli.main import run; run(['--help'])"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Processor time, and the best of a few: other processes may keep the machine busy.
    assert min(once() for _ in range(5)) < 0.5


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_has_a_page_of_help_with_two_examples(headrace: Call, name: str) -> None:
    command = load_command(name)
    assert isinstance(command, Verb | VerbGroup)
    assert command.name == name
    examples = command.examples
    assert len(examples) >= 2
    assert all(example.startswith(f"headrace {name}") for example in examples)
    assert headrace(name, "--help").exit_code == 0


def test_no_command_needs_pyspark_to_be_loaded() -> None:
    code = (
        "import sys; from headrace.cli.main import COMMANDS, headrace\n"
        "import click\n"
        "for name in COMMANDS:\n"
        "    headrace.get_command(click.Context(headrace), name)\n"
        "assert not {'pyspark', 'py4j', 'deltalake', 'confluent_kafka', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_command_that_only_looks_loads_no_planner_and_no_writer(tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\nstorage: ./lake\nlibraries: [{file: a.py}]\n")
    (tmp_path / "a.py").write_text("")
    code = (
        "import sys; from headrace.cli.main import run\n"
        f"assert run(['status', '--project', {str(tmp_path)!r}]) == 0\n"
        "heavy = {'numpy', 'pyspark', 'headrace.plan.evaluate', 'headrace.sinks.delta.commit'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "--offline", "--exit-code"], "headrace plan --offline"),
        (["run", "--full-refresh", "a", "--continuous"], "headrace run --full-refresh a"),
        (["produce", "orders"], "headrace produce --help"),
    ],
)
def test_options_that_exclude_each_other_are_refused_with_commands(
    headrace: Call, arguments: list[str], code: str
) -> None:
    called = headrace(*arguments, "--json")
    error = called.data["error"]
    assert (called.exit_code, error["code"]) == (2, "COMMAND_LINE")
    assert error["params"] == {"command": f"headrace {arguments[0]}"}
    assert any(code in remedy for remedy in error["remedies"])


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["palan"], "plan"),
        (["plan", "--jsn"], "--json"),
        (["broker", "topcs"], "topics"),
        (["broker", "start", "--prt", "5"], "--port"),
        (["run", "--rename-flow", "x"], None),
        (["full-refresh"], None),
        (["broker", "topics", "create", "t", "--partitions", "none"], None),
    ],
)
def test_a_wrong_command_line_is_named_with_what_was_meant(
    headrace: Call, arguments: list[str], suggestion: str | None
) -> None:
    called = headrace(*arguments)
    assert called.exit_code == 2
    assert "error[COMMAND_LINE]" in called.err
    assert "--help" in called.err
    assert suggestion is None or f"did you mean {suggestion}" in called.err.replace("mean headrace ", "mean ")


@pytest.mark.parametrize("other", ["--refresh", "--full-refresh"])
def test_a_full_refresh_of_all_datasets_names_no_single_ones(headrace: Call, other: str) -> None:
    called = headrace("run", "--full-refresh-all", other, "orders,items", "--json")
    assert (called.exit_code, called.data["error"]["code"]) == (2, "CONFLICTING_PIPELINE_REFRESH_OPTIONS")
    assert called.data["error"]["params"] == {"conflicting_option": other}


def test_a_wrong_command_line_is_answered_in_json_too(headrace: Call) -> None:
    called = headrace("palan", "--json")
    assert called.exit_code == 2
    assert called.data["error"]["code"] == "COMMAND_LINE"
    assert called.err == ""


def test_warnings_reach_the_error_stream_and_traces_of_py4j_do_not() -> None:
    code = (
        "import logging; from headrace.cli.main import set_up_logging\n"
        "from headrace.model.secrets import Redactor; set_up_logging(Redactor(), debug=False)\n"
        "exec(compile('logging.error(\"connection lost\")', '/lib/py4j/java_gateway.py', 'exec'))\n"
        "logging.getLogger('shop').warning('late'); logging.info('on time')"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("", "WARNING shop: late\n")


def test_a_result_brings_its_exit_code(headrace: Call, failing: list[Any]) -> None:
    called = headrace("doctor")
    assert (called.exit_code, called.out) == (3, "fine\n")
    assert headrace("doctor", "--json").data == {"format_version": 1, **NOTHING_CHECKED}


def test_an_error_shows_place_facts_and_remedies(headrace: Call, failing: list[Any], tmp_path: Path) -> None:
    (tmp_path / "big.sql").write_text("-- big\nSELECT * FROM\tSTREAM order\n")
    failing.append(
        UsageError(
            "big reads `order`, which no file declares",
            location=SourceLocation("big.sql", 2, 22, 5),
            facts=["nothing was written"],
            remedies=["did you mean `orders`?", "headrace plan"],
        )
    )
    called = headrace("doctor")
    assert called.exit_code == 2
    assert called.err == (
        "error[USAGE] big reads `order`, which no file declares\n"
        "  --> big.sql:2:22\n"
        "   |\n"
        " 2 | SELECT * FROM   STREAM order\n"
        "   |                        ^^^^^\n"
        "  nothing was written\n"
        "  help: did you mean `orders`?\n"
        "        headrace plan\n"
        "  more: headrace explain USAGE\n"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_narrow_terminal_breaks_neither_words_nor_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    out, err = Terminal(), Terminal()
    output = TextOutput(stdout=out, stderr=err)
    output.result(Result(data=None, text="  bronze  ranges of 4 partitions hold\n\nProven (records)"))
    assert out.getvalue().splitlines() == ["  bronze  ranges of 4 partitions hold", "", "Proven (records)"]
    output.error(
        RefusedError(
            "flow orders: the topic is another one than before",
            facts=["the checkpoint read the topic with another id"],
            remedies=["keep the rows:   headrace reset orders", "headrace plan"],
        )
    )
    assert err.getvalue().splitlines() == [
        "error[REFUSED] flow orders: the topic is",
        "  another one than before",
        "  the checkpoint read the topic with",
        "    another id",
        "  help: keep the rows:",
        "        headrace reset orders",
        "        headrace plan",
        "  more: headrace explain REFUSED",
    ]


def test_an_error_in_json_has_the_same_fields(headrace: Call, failing: list[Any]) -> None:
    failing.append(RefusedError("no", location=SourceLocation("a.py", 3), params={"flow": "x"}))
    called = headrace("doctor", "--json")
    assert called.exit_code == 1
    assert called.data["error"] == failing[0].to_dict()


def test_debug_adds_the_trace(headrace: Call, failing: list[Any]) -> None:
    failing.append(RefusedError("no"))
    assert "Traceback" not in headrace("doctor").err
    assert "Traceback" in headrace("doctor", "--debug").err
    assert "Traceback" in str(headrace("doctor", "--debug", "--json").data)


def test_a_defect_is_short_on_the_screen_and_whole_in_a_file(
    headrace: Call, failing: list[Any], tmp_path: Path
) -> None:
    failing.append(ZeroDivisionError("division by zero"))
    called = headrace("doctor")
    assert called.exit_code == 1
    assert "error[INTERNAL]" in called.err
    assert "ZeroDivisionError" in called.err
    assert "Traceback" not in called.err
    (file,) = (tmp_path / "cache" / "logs").glob("error-*.log")
    assert str(file) in called.err
    assert "Traceback" in file.read_text()


def test_what_lies_over_the_spec_is_given_by_set(headrace: Call, tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\nstorage: ./a\n")
    found = headrace("status", "--json", "--set", "name=other", "--set", "storage=b", "--set", "storage=./c")
    assert (found.data["pipeline"], found.data["storage"]) == ("other", str(tmp_path / "c"))
    wrong = headrace("status", "--set", "name")
    assert (wrong.exit_code, "KEY=VALUE" in wrong.err) == (2, True)
    unknown = headrace("status", "--json", "--set", "nam=x")
    assert unknown.data["error"]["params"]["suggestion"] == "name"


@pytest.mark.parametrize("form", [[], ["--json"], ["--debug"], ["--debug", "--json"]])
def test_a_secret_is_struck_out_wherever_it_comes_from(
    headrace: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: list[str]
) -> None:
    def fail(project: Any) -> None:
        raise ZeroDivisionError(f"divided by {project.kafka.settings['sasl.password']}")

    monkeypatch.setattr("headrace.runtime.doctor.run_checks", fail)
    (tmp_path / "headrace.yml").write_text("name: shop\n")
    called = headrace("doctor", "--set", "kafka.sasl.password=hunter22", *form)
    assert "divided by ***" in called.out + called.err
    (file,) = (tmp_path / "cache" / "logs").glob("error-*.log")
    assert "hunter22" not in called.out + called.err + file.read_text()


def test_log_lines_lose_their_secrets() -> None:
    formatter = RedactingFormatter("%(message)s", Redactor(["hunter22"]))
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "it is %s", ("hunter22",), None)
    assert formatter.format(record) == "it is ***"


def test_a_jvm_that_has_gone_is_named_wherever_it_was_noticed(headrace: Call, failing: list[Any]) -> None:
    class Py4JNetworkError(Exception):
        """As py4j's own, which needs no JVM to be known by its name."""

    error = RuntimeError("the query could not be built")
    error.__cause__ = Py4JNetworkError("Answer from Java side is empty")
    failing.append(error)
    called = headrace("doctor")
    assert "error[DRIVER_LOST]" in called.err
    assert "memory: 2g" in called.err


def test_a_signal_that_breaks_off_a_clean_up_keeps_its_exit_code(headrace: Call, failing: list[Any]) -> None:
    error = KeyError("m")
    error.__context__ = main.Terminated()
    failing.append(error)
    called = headrace("doctor")
    assert (called.exit_code, called.err) == (143, "")


def test_nobody_reads() -> None:
    command = f"{sys.executable} -m headrace --version >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_may_be_unwanted(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    styled = click.style("fine", fg="green")
    seen = {}
    for wanted in (True, False):
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        if not wanted:
            monkeypatch.setenv(variable, value)
        terminal = Terminal()
        TextOutput(stdout=terminal, stderr=terminal).write(styled, terminal)
        seen[wanted] = terminal.getvalue()
    assert seen == {True: f"{styled}\n", False: "fine\n"}


@pytest.mark.parametrize(
    ("signal", "exit_code"), [(KeyboardInterrupt(), 130), (main.Terminated(), 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_with_its_own_code(
    headrace: Call, failing: list[Any], signal: BaseException, exit_code: int
) -> None:
    failing.append(signal)
    assert headrace("doctor").exit_code == exit_code


def test_what_users_files_print_stays_out_of_the_json(
    headrace: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def callback(**_: object) -> Result:
        sys.stdout.write("printed by a pipeline's file\n")
        return Result(data=NOTHING_CHECKED)

    command = Verb("doctor", callback=callback, params=[click.Option(["--json"], is_flag=True)])
    monkeypatch.setattr(main.LazyCommands, "get_command", lambda *_: command)
    called = headrace("doctor", "--json")
    assert called.data == {"format_version": 1, **NOTHING_CHECKED}
    assert "printed by" in called.err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    code = (
        "import sys; from headrace.cli import main; from headrace.cli.output import Result\n"
        "from headrace.cli.verb import Verb\n"
        "command = Verb('doctor', callback=lambda: Result(data=None, text='x' * 1000000))\n"
        "main.LazyCommands.get_command = lambda *_: command\n"
        "sys.exit(main.run(['doctor']))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_asking_where_nobody_can_answer_names_the_way_without(
    headrace: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def callback(**_: object) -> Result:
        output = click.get_current_context().find_root().obj
        output.agrees([], "Rebuild?", "headrace full-refresh orders --yes")
        return Result(data=None)

    command = Verb("doctor", callback=callback, params=[click.Option(["--json"], is_flag=True)])
    monkeypatch.setattr(main.LazyCommands, "get_command", lambda *_: command)
    called = headrace("doctor")
    assert called.exit_code == 2
    assert "error[NOT_CONFIRMED]" in called.err
    assert "headrace full-refresh orders --yes" in called.err


def test_the_way_without_asking_keeps_the_accepted_losses(
    headrace: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\n")
    planned = SimpleNamespace(refuse_losses=lambda _: None, lines=lambda: ["a plan"])
    monkeypatch.setattr(Pipeline, "plan_refresh", lambda *_: planned)
    called = headrace("full-refresh", "orders", "items", "--accept-loss", "orders")
    assert "headrace full-refresh orders items --accept-loss orders --yes\n" in called.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--storage", "gs://bucket/x"],
        ["status", "--set", "storage=gs://bucket/x"],
        ["read", "gold", "--storage", "gs://bucket/x"],
        ["read", "gs://bucket/x"],
        ["status", "--project", "gs://bucket/x"],
        ["init", "gs://bucket/x"],
        ["demo", "--directory", "gs://bucket/x"],
        ["demo", "--storage", "abfss://c@account/x"],
        ["init", "new", "--storage", "gs://bucket/x"],
    ],
)
def test_a_uri_of_an_unsupported_kind_is_refused_before_anything_is_written(
    headrace: Call, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\n")
    called = headrace(*arguments, "--json")
    assert (called.exit_code, called.data["error"]["code"]) == (2, "STORAGE_UNSUPPORTED")
    assert called.data["error"]["params"]["supported"] == ["file", "s3"]
    assert [path.name for path in tmp_path.iterdir()] == ["headrace.yml"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["init", "s3://lake/v1"],
        ["demo", "--directory", "s3://lake/v1"],
        ["status", "--project", "s3://lake/v1"],
    ],
)
def test_a_bucket_is_a_storage_and_not_a_folder(headrace: Call, arguments: list[str]) -> None:
    error = headrace(*arguments, "--json").data["error"]
    assert error["code"] == "STORAGE_UNSUPPORTED"
    assert "--storage s3://lake/v1" in error["remedies"][0]


def test_a_demo_is_refused_a_storage_that_has_files(
    headrace: Call, object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_server.reach(monkeypatch)
    bucket = object_server.make_bucket()
    object_server.client.put_object(Bucket=bucket, Key="v1/orders/1.json", Body=b"{}")
    called = headrace("demo", "--storage", f"s3://{bucket}/v1", "--json")
    error = called.data["error"]
    assert (error["code"], error["params"]) == ("DEMO_FOLDER_TAKEN", {"path": f"s3://{bucket}/v1"})
    assert error["remedies"] == [f"use another storage:   headrace demo --storage s3://{bucket}/v1-2"]
    assert not list(tmp_path.iterdir())
    missing = headrace("demo", "--storage", "s3://no-such-bucket/v1", "--json")
    assert missing.data["error"]["code"] == "STORAGE_ACCESS_REFUSED"
    assert not list(tmp_path.iterdir())


def test_a_file_uri_is_a_storage(headrace: Call, tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\n")
    for given in (f"file://{tmp_path}/my%20lake", "my lake"):
        found = headrace("status", "--json", "--storage", given)
        assert found.data["storage"] == str(tmp_path / "my lake")


def written(text: str, encoding: str, *, is_json: bool = False) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    replace_unencodable(stream, is_json=is_json)
    stream.write(text)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_our_own_characters_get_plain_ones() -> None:
    assert written("counts ✓ orders ─┬─▶ gold", "ascii") == "counts ok orders -+-> gold"
    assert written("ranges ✗ … · –", "ascii") == "ranges FAIL ... - -"  # noqa: RUF001
    assert written("✓ · –", "cp1252") == "ok · –"  # noqa: RUF001


def test_characters_of_data_become_escapes() -> None:
    assert written("Zoë 日本", "ascii") == "Zo\\xeb \\u65e5\\u672c"
    document = json.dumps({"name": "Zoë 日本 😀 ✓"}, ensure_ascii=False)
    assert json.loads(written(document, "ascii", is_json=True)) == json.loads(document)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_command_writes_to_such_a_terminal(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "doctor"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.stdout.decode(encoding).startswith("ok ")
    assert b"Error" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_does_not_end_after_its_last_signal_is_ended(number: int) -> None:
    """Its clean-up hangs: the process ends all the same, with the exit code of the signal."""
    code = """
import signal, time
from headrace.cli import main
main._END_S = 0.2
signal.signal(signal.SIGINT, main._end_process)
signal.signal(signal.SIGTERM, main._end_process)
steps = iter([lambda: print("ready", flush=True)])
until = time.monotonic() + 30
while time.monotonic() < until:
    try:
        next(steps, lambda: None)()
        time.sleep(30)
    except BaseException:
        pass
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(20) == 128 + number
        assert "was ended" in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal_exit_handlers_run_and_no_thread_is_waited_for(number: int) -> None:
    """Python is not taken down below threads that still work: they would end it with a fatal error."""
    code = """
import atexit, sys, threading, time
from headrace.cli import main
from headrace.cli.output import Result
from headrace.cli.verb import Verb

def work():
    atexit.register(print, "handlers ran")
    threading.Thread(target=time.sleep, args=(300,)).start()
    print("ready", flush=True)
    time.sleep(300)

command = Verb("doctor", callback=work)
main.LazyCommands.get_command = lambda *_: command
sys.argv = ["headrace", "doctor"]
main.main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err.strip()) == (128 + number, "handlers ran\n", "")
