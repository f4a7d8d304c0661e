"""One name for one thing: no two public classes have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import steelyard

PACKAGE = Path(steelyard.__file__).parent


def public_classes() -> Iterator[tuple[str, str]]:
    """Name and file of each."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, str(path.relative_to(PACKAGE))


def test_public_classes_have_names_of_their_own() -> None:
    files = defaultdict(list)
    for name, file in public_classes():
        files[name].append(file)
    assert len(files) > 400
    repeated = {name: where for name, where in files.items() if len(where) > 1}
    assert not repeated, repeated
