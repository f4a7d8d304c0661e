"""A wrong command line is one line that names what is wrong and what would be right."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from steelyard.cli import COMMANDS, main

SEE = "; see 'steelyard {} --help'"
WRONG = {
    "simulate --nosuch": "--nosuch: no such option",
    "simulate s.yaml --ovewrite": "--ovewrite: no such option (did you mean --overwrite?)",
    "simulate s.yaml --Overwrite": "--Overwrite: no such option (did you mean --overwrite?)",
    "simulate -x": "-x: no such option",
    "simulate --out": "--out: requires an argument",
    "simulate s.yaml --overwrite=3": "--overwrite: does not take a value",
    "simulate": "scenario is missing: Scenario file, YAML or JSON",
    "simulate a b c": "got unexpected extra argument(s) (b c)",
    "simulate s.yaml --workers -1": "--workers: must be greater than or equal to 0 (found '-1')",
    "gateway http://x --port abc": "--port: must be a valid integer (found 'abc')",
    "gateway http://x --port 99999": "--port: must be less than or equal to 65535 (found '99999')",
    "gateway http://x --rate abc": "--rate: must be a valid number (found 'abc')",
    "gateway": "engines is missing: Addresses of engines, such as http://127.0.0.1:8000",
    "emulate s.yaml --speed nan": "--speed: must be less than or equal to 1000 (found 'nan')",
    "compare s.yaml --seeds 1.5": "--seeds: must be a valid integer (found '1.5')",
    "compare s.yaml --seeds 100000000": "--seeds: must be less than or equal to 100 (found '100000000')",
    "calibrate x": "--out is missing: File to write, for cost.calibration of scenarios",
    "gpus --json": "--json: no such option",
    "schema x": "got unexpected extra argument(s) (x)",
}
WITHOUT_COMMAND = {
    "--nosuch": "error: steelyard: --nosuch: no such option; see 'steelyard --help'",
    "--version=3": "error: steelyard: --version: does not take a value; see 'steelyard --help'",
    "--": "error: steelyard: missing command; see 'steelyard --help'",
    "simulat": "error: steelyard: 'simulat': no such command; did you mean 'simulate' or 'emulate'?",
    "-- --x": f"error: steelyard: '--x': no such command; choose one of {', '.join(sorted(COMMANDS))}",
}


def said(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the program says of a wrong command line; it says nothing else, and writes nothing."""
    monkeypatch.setattr(sys, "argv", ["steelyard", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert stop.value.code == 2 and not printed.out
    return printed.err


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_with_a_command(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = line.split()[0]
    told = said(*line.split(), monkeypatch=monkeypatch, capsys=capsys)
    assert told == f"error: steelyard {command}: {WRONG[line]}{SEE.format(command)}\n"


@pytest.mark.parametrize("line", WITHOUT_COMMAND)
def test_what_is_wrong_before_a_command(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(*line.split(), monkeypatch=monkeypatch, capsys=capsys) == f"{WITHOUT_COMMAND[line]}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_required_parameter_can_be_missed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a help to be told of, and each option is refused in one line if its value is left out."""
    alone = typer.Typer()
    alone.command(name)(import_module(f"steelyard.cli.{name.replace('-', '_')}").command)
    parameters: list[Any] = typer.main.get_command(alone).params
    for each in parameters:
        assert each.name == "help" or each.help or each.opts[0].endswith("completion"), each
    options = [each.opts[0] for each in parameters if each.param_type_name == "option" and not each.is_flag]
    for option in options:
        told = said(name, option, monkeypatch=monkeypatch, capsys=capsys)
        assert told == f"error: steelyard {name}: {option}: requires an argument{SEE.format(name)}\n"


@pytest.mark.parametrize("value", ["x" * 5000, "\x1b[31m", "a\nb", "\udcff"])
def test_values_are_shortened_and_escaped(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["gateway", "x", "--port", value], ["gateway", "x", f"--{value}"], [value], ["gpus", value]):
        told = said(*arguments, monkeypatch=monkeypatch, capsys=capsys)
        assert told.count("\n") == 1 and told[:-1].isprintable() and len(told) < 700


def test_a_shell_gets_no_message_while_a_command_is_typed() -> None:
    env = {"_STEELYARD_COMPLETE": "complete_bash", "COMP_WORDS": "steelyard nonsense --x", "COMP_CWORD": "2"}
    command = [sys.executable, "-m", "steelyard"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and "error" not in done.stdout
