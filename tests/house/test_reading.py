"""The boundary: only the readers of `files` read, so that what they bound is bounded for every input."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import steelyard

PACKAGE = Path(steelyard.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "files")
METHODS = {
    *(
        "read_text",
        "read_bytes",
        "read_table",
        "read_metadata",
        "read_schema",
        "ParquetFile",
        "memory_map",
        "literal_eval",
    ),
    *("loadtxt", "genfromtxt", "fromfile", "memmap", "read_csv", "read_parquet", "expanduser", "rglob", "walk"),
    *("is_file", "is_dir", "exists"),  # which fail at names that are too long
}
CALLS = {
    "json": {"load", "loads"},
    "orjson": {"loads"},
    "yaml": {"load", "load_all", "safe_load", "safe_load_all", "full_load", "compose", "parse"},
    "csv": {"reader", "DictReader"},
    "gzip": {"open", "decompress", "GzipFile"},
    "np": {"load"},
    "pickle": {"load", "loads"},
    "os": {"open"},
    "zlib": {"decompress"},
}
ALLOWED = {
    "cli/edge.py": {"os.open"},  # the null device, for closed standard streams
    "cost/bundle.py": {"json.loads", "is_file"},  # the description of a profile that ships
    "cost/points.py": {"np.load"},  # of a profile that ships
    "live/access_log.py": {"orjson.loads"},  # answers of engines, which it bounds itself
    "live/adapters/calls.py": {"orjson.loads"},  # bodies of requests, which it bounds itself
    "live/client.py": {"orjson.loads"},  # answers of the gateway
    "live/turn_runner.py": {"orjson.loads"},  # answers of engines
    "live/requests.py": {"orjson.loads"},  # bodies of requests, which it bounds itself
    "live/journal.py": {"orjson.loads"},  # what it wrote itself
    "live/trajectories.py": {"orjson.loads"},  # bodies of requests, which the gateway bounds
    "live/wire.py": {"orjson.loads"},  # messages between parts of one run, which are bounded
    "posttrain/compare_runs.py": {"json.loads", "is_file", "rglob"},  # a scenario that was just written; our own code
    "report/folder.py": {"is_dir"},  # of where results go
    "report/trace.py": {"gzip.GzipFile"},  # to write
    "sim/cache.py": {"pickle.load"},  # from a folder that only the user can write to
    "validate/rival.py": {"is_file"},  # of an installed package
    "validate/settings.py": {"literal_eval"},  # of at most 10,000 characters
    "validate/silicon_points.py": {"is_file"},  # of an installed package
}


def reads(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every call that could read a file, or text from one, by itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                yield node.lineno, "open"
            case ast.Attribute(attr="open") if reading_mode(node):
                yield node.lineno, "open"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in CALLS.get(module, ()):
                yield node.lineno, f"{module}.{name}"
            case ast.Attribute(attr=name) if name in METHODS:
                yield node.lineno, name


def reading_mode(call: ast.Call) -> bool:
    """Whether a call of a method open is that of a path: without arguments, or with a mode or an encoding."""
    modes = [each for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return not call.args or bool(modes) or any(each.arg in ("mode", "encoding", "newline") for each in call.keywords)


def test_nothing_reads_by_itself() -> None:
    wrong = []
    for path in MODULES:
        name = path.relative_to(PACKAGE).as_posix()
        wrong += [f"{name}:{line}: {call}" for line, call in reads(path) if call not in ALLOWED.get(name, set())]
    assert len(MODULES) > 500 and not wrong, "use the readers of steelyard.files\n" + "\n".join(wrong)


def test_every_exception_is_needed() -> None:
    for name, allowed in ALLOWED.items():
        assert {found for _, found in reads(PACKAGE / name)} == allowed, name


@pytest.mark.parametrize(
    "line",
    [
        "open('x')",
        "path.open()",
        "path.open('rb')",
        "path.open(encoding='utf-8')",
        "gzip.open(path)",
        "Path('x').read_text()",
        "json.loads(text)",
        "yaml.safe_load(text)",
        "csv.reader(lines)",
        "np.load(path)",
        "pq.read_table(path)",
        "path.is_file()",
    ],
)
def test_the_check_sees_them(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.py").write_text(line)
    assert list(reads(tmp_path / "x.py"))


def test_the_check_lets_others_pass(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("read_text(path)\nself.policy.open(round_)\njson.dumps(x)\nyaml.safe_dump(x)\n")
    assert not list(reads(tmp_path / "x.py"))
