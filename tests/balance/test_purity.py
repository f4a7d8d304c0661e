"""The decision core is light and pure: it loads in a bare interpreter and sees nothing but what it is given.

Whatever it may import is named here. A module that needs more has no place in `balance/`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import steelyard

BALANCE = Path(steelyard.__file__).parent / "balance"
MODULES = sorted(BALANCE.rglob("*.py"))

OWN = ("steelyard.balance", "steelyard.records", "steelyard.errors", "steelyard.quoting")
ALLOWED = {
    *("__future__", "abc", "bisect", "collections", "copy", "dataclasses", "enum", "fractions", "functools", "hashlib"),
    *("heapq", "itertools", "json", "math", "operator", "pickle", "random", "statistics", "struct", "sys", "types"),
    *("typing", "zlib", "numpy"),
}
EXCEPTIONS = {
    "estimate/surface.py": {"dot", "einsum", "@"},  # of numbers with few bits, whose products and sums are exact
    "snapshot.py": {"io"},  # bytes in memory
}
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "hash"}
SYS = {"modules", "float_info", "maxsize"}
SEEDED = {"Random", "default_rng"}  # generators that are one's own, if they are given a seed
BLAS = {"dot", "vdot", "inner", "matmul", "einsum", "tensordot", "linalg", "@"}  # last digits depend on the CPU
NUMPY_RANDOM = {"default_rng", "Generator", "Philox", "PCG64"}
HEAVY = ("pyarrow", "pydantic", "yaml", "typer", "rich", "torch", "asyncio", "multiprocessing", "socket", "ssl")


def impure(source: str, exceptions: Collection[str] = ()) -> Iterator[str]:
    """What a module does that the core may not, with the line it stands on."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            wrong = [name for name in _imports(node) if not _allowed(name, exceptions)]
            yield from (f"line {node.lineno}: imports {name}" for name in wrong)
        if isinstance(node, ast.Call):
            yield from (f"line {node.lineno}: {what}" for what in _calls(node))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith(".random"):
            yield from (f"line {node.lineno}: random.{each}" for each in {node.attr} - NUMPY_RANDOM)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sys":
            yield from (f"line {node.lineno}: sys.{each}" for each in {node.attr} - SYS)
        if isinstance(node, ast.Attribute | ast.BinOp):
            name = node.attr if isinstance(node, ast.Attribute) else "@" * isinstance(node.op, ast.MatMult)
            yield from (f"line {node.lineno}: {each}" for each in ({name} & BLAS) - set(exceptions))
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"


def _imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = "." * node.level + (node.module or "")
    return [f"random.{alias.name}" for alias in node.names] if module == "random" else [module]


def _allowed(name: str, exceptions: Collection[str]) -> bool:
    if name in exceptions:
        return True
    if name.startswith("steelyard"):
        return name.startswith(OWN)
    first = name.partition(".")[0]
    return name == "random.Random" if first == "random" else first in ALLOWED and name != "numpy.random"


def _calls(node: ast.Call) -> Iterator[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in FORBIDDEN_CALLS:
        yield f"calls {name}()"
    last = node.func.attr if isinstance(node.func, ast.Attribute) else name
    if last in SEEDED and not node.args and not node.keywords:
        yield f"{last}() without a seed"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(BALANCE).as_posix())
def test_no_clock_file_thread_environment_random_state_or_blas(path: Path) -> None:
    allowed = EXCEPTIONS.get(path.relative_to(BALANCE).as_posix(), set())
    assert not list(impure(path.read_text(encoding="utf-8"), allowed))


@pytest.mark.parametrize(
    "line",
    [
        *("import time", "from datetime import datetime", "from pathlib import Path", "import os", "import threading"),
        *("import subprocess", "import socket", "from concurrent.futures import Executor", "import random"),
        *("from random import choice", "from numpy.random import rand", "np.random.rand()", "np.random.seed(1)"),
        *("rng = np.random.default_rng()", "rng = Random()", "open('x')", "print(1)", "hash('a')", "global cache"),
        *("from steelyard.workload import build_workload", "import steelyard.sim", "import steelyard"),
        *("from . import other", "def later():\n    import asyncio", "sys.stdout.write('x')", "sys.argv[1]"),
        *("left @ right", "left.dot(right)", "np.linalg.solve(a, b)"),
    ],
)
def test_the_check_sees_what_is_impure(line: str) -> None:
    assert list(impure(line))


@pytest.mark.parametrize(
    "line",
    [
        *("import numpy as np", "from random import Random", "rng = Random(7)", "np.random.default_rng([seed, 1])"),
        *("from steelyard.records import Turn", "policy.open(round_)", "rng: np.random.Generator"),
    ],
)
def test_the_check_lets_pass_what_is_pure(line: str) -> None:
    assert not list(impure(line))


def test_all_of_it_loads_alone() -> None:
    """Every module, in an interpreter of its own: no heavy package, no scenario, no simulator."""
    names = [".".join(("steelyard", *path.relative_to(BALANCE.parent).with_suffix("").parts)) for path in MODULES]
    script = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\nprint(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    ours = {name for name in loaded if name.startswith("steelyard.")}
    assert not [name for name in ours if not name.startswith((*OWN, "steelyard.lazy"))]
    assert not [name for name in loaded if name.partition(".")[0] in HEAVY]
