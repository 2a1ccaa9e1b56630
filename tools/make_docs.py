"""Write the pages made from the source: ``python tools/make_docs.py`` (``--check`` compares only).

The texts of docs/errors.md are written there; this orders them, and writes the list and the exit codes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import click
from json_schema import build_json_schema
from pydantic import BaseModel

from headrace.cli.commands.explain import ErrorPage, build_pages
from headrace.cli.main import GROUPS, load_command
from headrace.declare.spec_model import Overridable, Spec, describe_fields

DOCS = Path(__file__).parents[1] / "docs"

ERRORS_HEAD = """\
# Errors

Every error has a code, one sentence, the line in your files, facts, and remedies. `--json` gives the same
fields, `--debug` the stack trace, and `headrace explain CODE` prints the section of a code. The meaning of a
code does not change.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the work failed, or `verify` has findings |
| 2 | the pipeline or the command line is wrong |
| 3 | `verify --require`: the required grade cannot be judged |
| 4 | `plan --exit-code`: a run would change a table |
| 130, 143 | stopped by a signal |

"""

COMMANDS_HEAD = """\
# The command line

Every command has `--help`, `--json` (the same facts for machines) and `--debug` (the stack trace of an
error). A command on a pipeline looks for `headrace.yml` in the current folder and in the folders above it.
`python tools/make_docs.py` generates this page from the commands.

## JSON

With `--json`, a command prints one object, or one object a line: `run`, `full-refresh`, `ingest`,
`events`, `consume` and `sql`. Each object begins with `"format_version": 1`; the number rises when a key gets
another name or meaning, not when a key is added. [json.schema.json](json.schema.json) describes the objects
of each command. A key means the same in all of them:

| key | meaning |
|---|---|
| `dataset` | a table, view or sink with its schema, such as `default.orders` |
| `flow`, `topic` | the name of a flow, of a topic |
| `at` | the time of the object, in UTC |
| `version` | a version of a Delta table |
| `path`, `paths` | a file or folder |
| `log` | the path of a log |
| `bootstrap_servers` | the address of a Kafka cluster |
| `size_bytes`, `duration_s` | a size in bytes, a time in seconds |

The `state` of a flow is `new`, `running`, `retrying`, `reconnecting`, `up to date`, `behind`, `stopped`,
`failed`, `skipped` or `unknown`.

A command that fails prints `{"format_version": 1, "error": {..}}` with `code`, `summary`, `location`,
`facts`, `remedies`, `transient`, and `params`: the values in the error, with the same keys. A command that
asks for confirmation prints `"done": false` if nothing was done.

```text
headrace status --json | jq '.datasets[].flows[] | select(.state != "up to date")'
headrace run --json | jq 'select(.result).result.outcome'
```

## Commands

"""

SPEC_BEGIN = "<!-- made from the model by tools/make_docs.py -->"
SPEC_END = "<!-- end -->"


def main() -> int:
    """Write the pages, or compare them."""
    pages: Mapping[str, Callable[[], str]] = {
        "errors.md": build_errors,
        "cli.md": build_commands,
        "spec.md": build_spec,
        "json.schema.json": build_json_schema,
    }
    stale = []
    for name, build in pages.items():
        file, text = DOCS / name, build()
        if "--check" in sys.argv[1:]:
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            file.write_text(text, encoding="utf-8")
    return 1 if stale else 0


# -- errors


def build_errors() -> str:
    """One section for each code, in the order of the alphabet."""
    pages = build_pages()
    listed = "\n".join(f"- [{code}](#{code.lower()})" for code in pages)
    return ERRORS_HEAD + listed + "\n" + "".join(map(_error, pages.values()))


def _error(page: ErrorPage) -> str:
    traits = f"exit code {page.exit_code}" + (", repeated with backoff" if page.transient else "")
    return f"\n## {page.code}\n\n{page.text}\n\n*{traits}*\n"


# -- commands


def build_commands() -> str:
    """One section for each command, in the order of the help."""
    groups = {title: dict(_commands(names)) for title, names in GROUPS.items()}
    listed = "\n".join(f"- {title}: {', '.join(map(_link, group))}" for title, group in groups.items())
    pages = (_command(name, each) for group in groups.values() for name, each in group.items())
    return COMMANDS_HEAD + listed + "\n" + "".join(pages)


def _link(name: str) -> str:
    return f"[`{name}`](#headrace-{name.replace(' ', '-')})"


def _commands(names: Iterable[str]) -> Iterator[tuple[str, click.Command]]:
    for name in names:
        yield from _with_inner(name, load_command(name))


def _with_inner(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    for inner, below in command.commands.items():
        yield from _with_inner(f"{name} {inner}", below)


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"headrace {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    examples = "\n".join(getattr(command, "examples", ()))
    parts = [
        f"\n## headrace {name}",
        _text(command.help),
        f"```text\nheadrace {name} {usage}\n```",
        _options(command, context),
        f"```text\n{examples}\n```" if examples else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _options(command: click.Command, context: click.Context) -> str:
    records = [each.get_help_record(context) for each in command.params if isinstance(each, click.Option)]
    rows = [record for record in records if record is not None and record[0] not in ("--json", "--debug")]
    if not rows:
        return ""
    cells = [(option.replace("|", "\\|"), " ".join(meaning.split())) for option, meaning in rows]
    return "\n".join(["| option | meaning |", "|---|---|", *(f"| `{o}` | {m} |" for o, m in cells)])


# -- the spec


def build_spec() -> str:
    """The page as it is, with the table of keys made anew."""
    page = (DOCS / "spec.md").read_text(encoding="utf-8")
    head, _, rest = page.partition(SPEC_BEGIN)
    _, _, tail = rest.partition(SPEC_END)
    describe_fields()
    name = Spec.model_fields["name"]
    keys = [("name", _words(name.description), "must be given"), *_keys(Overridable)]
    keys += [
        (key, _words(Spec.model_fields[key].description), "") for key in ("bundle", "pipeline", "root_path")
    ]
    keys.append(("profiles", "values that replace those above, by the name of the profile", ""))
    rows = "\n".join(f"| `{key}` | {meaning} | {default} |" for key, meaning, default in keys)
    table = f"| key | meaning | default |\n|---|---|---|\n{rows}\n"
    return f"{head}{SPEC_BEGIN}\n{table}{SPEC_END}{tail}"


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        plain = isinstance(field.default, str | bool | float) and prefix + name != "trigger.interval"
        default = f"`{str(field.default).lower()}`" if plain else ""
        yield prefix + name, _words(field.description), default
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{prefix}{name}.")


def _words(description: str | None) -> str:
    return _text(" ".join((description or "").split())).replace("|", "\\|")


def _text(docstring: str | None) -> str:
    """A docstring as Markdown, without its sections for programmers."""
    text = inspect.cleandoc(docstring or "").split("\n\nArgs:")[0]
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    # click's mark of a paragraph that keeps its lines
    return re.sub(r"\x08\n((?:.+\n?)+)", r"```text\n\1\n```", text)


if __name__ == "__main__":
    sys.exit(main())
