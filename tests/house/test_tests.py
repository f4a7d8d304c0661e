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


def imported_tests(path: Path) -> list[str]:
    """Test modules that a file imports."""
    tests = {module.stem for module in MODULES}
    return [f"{path.name}: {name}" for name in imported(path) if tests & set(name.split("."))]


def test_no_test_module_is_imported() -> None:
    wrong = [name for path in (*MODULES, *TESTS.glob("support/*.py")) for name in imported_tests(path)]
    assert not wrong, f"move to tests/support what others need: {wrong}"


@pytest.mark.parametrize(
    "line", ["import test_layers", "from test_layers import ROOMS", "from tests.house import test_layers"]
)
def test_the_check_sees_all_kinds_of_import(tmp_path: Path, line: str) -> None:
    (tmp_path / "test_x.py").write_text(line)
    assert imported_tests(tmp_path / "test_x.py")


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
