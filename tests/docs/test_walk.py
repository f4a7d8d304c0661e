"""The walks through the code in docs/architecture.md name calls that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import steelyard
from support.paths import ROOT

PACKAGE = Path(steelyard.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"^## (One [^\n]*)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
CALL = re.compile(r"`([\w/]+\.py):([\w.]+)`")


def functions(path: Path) -> set[str]:
    """Functions of a module and methods of its classes, as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def test_there_is_a_walk_for_a_request_and_one_for_a_step() -> None:
    assert len(WALKS) == 2 and all(len(CALL.findall(walk)) >= 10 for walk in WALKS.values())


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_has_at_most_12_calls_in_order(name: str) -> None:
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", WALKS[name], re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) <= 12


@pytest.mark.parametrize(("file", "function"), sorted({call for walk in WALKS.values() for call in CALL.findall(walk)}))
def test_each_call_exists(file: str, function: str) -> None:
    assert (PACKAGE / file).is_file(), f"{file} is gone"
    assert function in functions(PACKAGE / file), f"{file} has no {function}"
