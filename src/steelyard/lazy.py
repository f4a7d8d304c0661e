"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def late(module: str, name: str) -> Callable[..., str]:
    """A function that writes HTML, of a package further down the house, imported when it is called.

    Only for ``_repr_html_``: a result shows itself in a notebook with the words of the reports, which are made of
    results. `tests/house/test_layers.py` has the list of those that do.
    """
    found: Callable[..., str] = getattr(import_module(module), name)
    return found


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names live in other modules, which are imported on demand.

    ``homes`` has the module of each name. The package imports the same names for type checkers, under
    ``TYPE_CHECKING``, so that they are checked like any others.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find
