"""The reference pages: scenario files, commands, the Python interface."""

from __future__ import annotations

from steelyard.cli.commands import COMMANDS
from steelyard.scenario import json_schema
from steelyard.scenario.load import schema_of
from steelyard.scenario.posttrain_loading import posttrain_schema
from steelyard.scenario.search import SearchScenario
from tools.book.commands import command_section
from tools.book.examples import examples
from tools.book.python import api_sections
from tools.book.schema import Section, heading, sections

_NOTE = "<!-- Made by `python -m tools.book`; edit the code that it describes instead. -->\n\n"

_KEYS = (
    "Every part of the file has a table of its keys. A key may be left out unless it is *required*. A linked type has "
    "a table of its own. Where a number or a part may stand, the number is short for a fixed value.\n\n"
)


def generated_pages() -> dict[str, str]:
    """Path and text of each."""
    serving = sections(json_schema())
    known = [part.title for part in serving]
    posttrain = sections(posttrain_schema(), known, "scenario.md")
    search = sections(schema_of(SearchScenario, "Steelyard search scenario"), known, "scenario.md")
    return {
        f"docs/reference/{name}.md": text
        for name, text in (
            ("scenario", _keys_page("Serving scenario", serving, "steelyard simulate")),
            ("posttrain-scenario", _keys_page("Post-training scenario", posttrain, "steelyard posttrain")),
            ("search-scenario", _keys_page("Search scenario", search, "steelyard search")),
            ("commands", _commands_page()),
            ("python", _python_page()),
        )
    }


def _keys_page(title: str, parts: list[Section], command: str) -> str:
    body = "".join(_section(part, i == 0) for i, part in enumerate(parts))
    return f"# {title}\n\n{_NOTE}Every key of the file that `{command}` reads. {_KEYS}{body}".rstrip() + "\n"


def _section(part: Section, whole: bool) -> str:
    name = "The file" if whole else heading(part.title)
    rows = "".join(
        f"| `{key.name}` | {key.type} | {'*required*' if key.default == 'required' else key.default} | {key.unit} "
        f"| {key.limits} | {_cell(key.meaning)} | {_example(part.title, key.name)} |\n"
        for key in part.keys
    )
    head = "| key | type | default | unit | limits | meaning | example |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    summary = "" if whole else f"{part.summary}\n\n"
    return f"## {name}\n\n{summary}{head}{rows}\n"


def _example(part: str, key: str) -> str:
    shown = examples(part).get(key)
    return "" if shown is None else f"`{shown}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _commands_page() -> str:
    body = "\n".join(command_section(name) for name in COMMANDS)
    return (
        f"# Commands\n\n{_NOTE}Every command and option. `steelyard COMMAND --help` prints the same. "
        "A mistake in a command or file is exit code 2 with one message; an interrupt is 130.\n\n" + body
    )


def _python_page() -> str:
    return (
        f"# Python\n\n{_NOTE}What `import steelyard` and its public packages offer. Scenarios have the keys of their "
        "files: [serving](scenario.md), [post-training](posttrain-scenario.md), [search](search-scenario.md).\n\n"
        + api_sections()
    )
