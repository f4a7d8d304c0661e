"""Tests stand alone: what two test modules share is in `support`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.paths import ROOT

TESTS = ROOT / "tests"
MODULES = sorted(TESTS.rglob("test_*.py"))


def imported(path: Path) -> set[str]:
    """Every module that a file imports, and every name it imports from one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module or ''}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", [*MODULES, *TESTS.glob("support/*.py")], ids=lambda path: path.stem)
def test_no_test_module_is_imported(path: Path) -> None:
    tests = {module.stem for module in MODULES}
    wrong = {name for name in imported(path) if tests & set(name.split("."))}
    assert not wrong, f"move what {path.name} needs of {wrong} to tests/support"


@pytest.mark.parametrize(
    "line", ["import test_layers", "from test_layers import ROOMS", "from tests.house import test_layers"]
)
def test_the_check_sees_all_kinds_of_import(tmp_path: Path, line: str) -> None:
    (tmp_path / "test_x.py").write_text(line)
    with pytest.raises(AssertionError, match=r"move what test_x\.py needs"):
        test_no_test_module_is_imported(tmp_path / "test_x.py")


def test_tests_lie_in_folders_named_after_what_they_test() -> None:
    rooms = {path.stem for path in (ROOT / "src" / "steelyard").iterdir()}
    assert {path.relative_to(TESTS).parts[0] for path in MODULES} <= rooms | {
        "bench",
        "studies",
        "tools",
        "house",
        "docs",
        "fuzz",
    }
