"""A command's section of the reference: what it does, its arguments and options, as its own help says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import typer

from steelyard.cli.commands import app_command


def command_section(name: str) -> str:
    """Its help and a table of parameters."""
    command = app_command(name)
    context = typer.Context(command, info_name=name)
    lines = [f"## steelyard {name}", "", *_paragraphs(inspect.cleandoc(command.help or ""))]
    records = [record for each in command.params if (record := each.get_help_record(context)) is not None]
    if records:
        lines += [
            "| parameter | meaning |",
            "| --- | --- |",
            *(f"| `{shown}` | {_cell(text)} |" for shown, text in records),
        ]
        lines += [""]
    return "\n".join(lines)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield " ".join(paragraph.split())
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
