"""The boundary: only the writers of `files` write, so that what they guarantee holds for every output."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import steelyard

PACKAGE = Path(steelyard.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "files")
METHODS = {
    *("write_text", "write_bytes", "touch", "mkdir", "rename", "hardlink_to", "symlink_to", "rmdir", "chmod"),
    *("mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "rmtree", "copyfile", "copy2"),
    *(
        "makedirs",
        "mkfifo",
        "truncate",
        "fdopen",
        "savez",
        "savez_compressed",
        "tofile",
        "OSFile",
        "to_csv",
        "to_parquet",
    ),
}
ALLOWED = {
    "cli/edge.py": {"fdopen"},  # standard streams
    "cli/crash.py": {"mkstemp", "fdopen"},  # a new file that only the user can read
    "live/train/checkpoint.py": {"rmtree"},  # old checkpoints and versions of weights, in its own folder
    "sim/cache.py": {"mkdir", "replace"},  # a folder that only the user can read
    "cost/points.py": {"savez_compressed"},  # to a file that `replacing` has opened
}


def writes(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every call that could write a file or change a folder by itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open") | ast.Attribute(attr="open") if writing_mode(node):
                yield node.lineno, "open"
            case ast.Attribute(attr=name) if name in METHODS:
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="os"), attr=("replace" | "remove") as name):
                yield node.lineno, name


def writing_mode(call: ast.Call) -> bool:
    """Whether a call of open has a mode that writes, or one that is not known here."""
    given = [*call.args, *(each.value for each in call.keywords if each.arg in ("mode", "flags"))]
    texts = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return any(set(text) <= set("rwaxbt+") and set(text) & set("wax+") for text in texts)


def test_nothing_writes_by_itself() -> None:
    wrong = []
    for path in MODULES:
        name = path.relative_to(PACKAGE).as_posix()
        wrong += [f"{name}:{line}: {call}" for line, call in writes(path) if call not in ALLOWED.get(name, set())]
    assert len(MODULES) > 500 and not wrong, "use steelyard.files.writing or steelyard.files.folder\n" + "\n".join(
        wrong
    )


def test_every_exception_is_needed() -> None:
    for name, allowed in ALLOWED.items():
        assert {found for _, found in writes(PACKAGE / name)} == allowed, name


@pytest.mark.parametrize(
    "line",
    [
        "open('x', 'w')",
        "open(path, mode='ab')",
        "path.open('x')",
        "gzip.open(path, 'wt')",
        "Path('x').write_text('')",
        "os.replace(a, b)",
        "tempfile.mkstemp()",
        "folder.mkdir()",
    ],
)
def test_the_check_sees_them(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.py").write_text(line)
    assert list(writes(tmp_path / "x.py"))


def test_the_check_lets_readers_pass(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("open('file')\npath.open('rb')\nself.policy.open(round_)\n'a'.replace('b', 'c')\n")
    assert not list(writes(tmp_path / "x.py"))
