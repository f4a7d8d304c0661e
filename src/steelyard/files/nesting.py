"""How deep data are nested."""

from __future__ import annotations

from typing import Any

from steelyard.files.limits import MOST_DEPTH

TOO_DEEP = f"nested more than {MOST_DEPTH} levels deep; give flatter data"


def too_deep(value: Any, most: int = MOST_DEPTH) -> bool:
    """Whether mappings and lists lie more than ``most`` levels deep in each other, the outermost counted."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        inner = [each for one in level for each in (one.values() if isinstance(one, dict) else one)]
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return bool(level)
