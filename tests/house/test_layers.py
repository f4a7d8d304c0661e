"""The house's one rule of architecture: data flows down the page, and nothing imports a room that comes after it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import steelyard

ROOMS = (
    *(
        "files",
        "records",
        "plot",
        "balance",
        "scenario",
        "workload",
        "model",
        "hardware",
        "cost",
        "engine",
        "fleet",
        "sim",
    ),
    "emulate",
    *("posttrain", "live", "deploy", "search", "validate", "profile", "report", "ui"),
)
SHARED = {
    "errors",
    "quoting",
    "lazy",
    "collector",
    "version",
    "words",
}  # open to every room, and itself without imports from any
ABOVE_ALL = {"cli", "__init__", "__main__"}  # may import every room; no room may import them
PACKAGE = Path(steelyard.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The part of the house a file belongs to: its first folder, or its own name at the top."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    """Line and room of everything of ours that a file imports, wherever in it the import stands."""
    found: list[tuple[int, str]] = []
    package = ("steelyard", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            # `from steelyard import sim` names a room, `from steelyard import simulate` the package itself
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "steelyard" else [module]
        for name in names:
            first, _, rest = name.partition(".")
            if first == "steelyard":
                assert isinstance(node, ast.Import | ast.ImportFrom)
                room = rest.partition(".")[0]
                found.append((node.lineno, room if room in {*ROOMS, *SHARED, "cli"} else "__init__"))
    return found


def test_every_part_of_the_package_is_a_known_room() -> None:
    """A new room has to be given its place here before anything can rely on it."""
    assert {room_of(path) for path in MODULES} <= {*ROOMS, *SHARED, *ABOVE_ALL}
    assert {"scenario", "engine", "sim", "report", "cli"} <= {room_of(path) for path in MODULES}


def test_modules_import_only_rooms_before_their_own() -> None:
    wrong = []
    for path in MODULES:
        room = room_of(path)
        if room not in ABOVE_ALL:
            before = SHARED | set(ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ())
            name = path.relative_to(PACKAGE)
            wrong += [f"{name}:{line}: {room} imports {other}" for line, other in imported(path) if other not in before]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("forbidden", ["scenario", "workload", "fleet", "sim", "report", "cli"])
def test_the_engine_stands_alone(forbidden: str) -> None:
    """An engine knows nothing of who asks, of other engines, or of files: it could be used without any of them."""
    for path in (PACKAGE / "engine").rglob("*.py"):
        assert forbidden not in {room for _, room in imported(path)}, path.name


def test_only_results_find_reports_by_name() -> None:
    """`late` imports against the flow of data, so that a result can show itself in a notebook. Nothing else may."""
    uses = {
        (str(path.relative_to(PACKAGE)), *(arg.value for arg in node.args if isinstance(arg, ast.Constant)))
        for path in MODULES
        if "late(" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "late"
    }
    assert uses == {
        ("sim/result.py", "steelyard.report.notebook", "result_html"),
        ("posttrain/result.py", "steelyard.report.notebook", "posttrain_html"),
        ("search/search.py", "steelyard.report.notebook", "search_html"),
        ("search/sweep_result.py", "steelyard.report.notebook", "sweep_html"),
    }


def test_nothing_imports_the_command_line() -> None:
    importers = {room_of(path) for path in MODULES if any(room == "cli" for _, room in imported(path))}
    assert importers <= ABOVE_ALL


def test_the_check_sees_all_kinds_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is only as good as the parser above."""
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    room = tmp_path / "engine"
    room.mkdir()
    file = room / "x.py"
    file.write_text(
        "import steelyard.sim.run\nfrom steelyard import fleet\nfrom steelyard import simulate\n"
        "from steelyard.report import page\nfrom ..cost import work\nfrom . import kv\nfrom .kv import Block\n"
        "def later():\n    import steelyard.cli as c\n"
    )
    found = [room for _, room in sorted(imported(file))]
    assert found == ["sim", "fleet", "__init__", "report", "cost", "engine", "engine", "cli"]
