"""The list of commands: each says of itself what the list says, and is imported only when it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from inspect import cleandoc

import pytest
from typer.testing import CliRunner

import steelyard
from steelyard.cli import COMMANDS, app

HEAVY = ("numpy", "pyarrow", "pydantic", "rich", "yaml")


def python(*arguments: str, **env: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_the_list_says_of_it(name: str) -> None:
    command = import_module(f"steelyard.cli.{name.replace('-', '_')}").command
    assert cleandoc(command.__doc__).split("\n\n")[0] == COMMANDS[name]
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"steelyard {name} " in shown.output and COMMANDS[name][:50] in shown.output


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, json; from steelyard.cli import app; app(sys.argv[1:], standalone_mode=False); print(); "
        "print(json.dumps([name for name in sys.modules]))"
    )
    loaded = json.loads(python("-c", code, *arguments).splitlines()[-1])
    assert "typer" in loaded and not {*HEAVY, "steelyard.scenario", "steelyard.sim"} & set(loaded)


def test_public_names_are_imported_when_they_are_used() -> None:
    loaded = f"print([name for name in {HEAVY} if name in sys.modules])"
    before, after = python("-c", f"import sys, steelyard; {loaded}; steelyard.Scenario; {loaded}").splitlines()
    assert before == "[]" and "pydantic" in after
    for name in steelyard.__all__:
        assert getattr(steelyard, name) is not None and name in dir(steelyard)
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = steelyard.simulat


def test_the_version_is_that_of_the_package() -> None:
    said = f"steelyard {steelyard.__version__}\n"
    assert python("-m", "steelyard", "--version") == said
    assert CliRunner().invoke(app, ["--version"]).output == said


def test_a_shell_is_offered_commands_and_their_options() -> None:
    def offered(words: str) -> list[str]:
        env = {"_STEELYARD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return python("-m", "steelyard", **env).split()

    assert offered("steelyard sim") == ["simulate"]
    assert offered("steelyard simulate --over") == ["--overwrite"]
