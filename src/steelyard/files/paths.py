"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from steelyard.errors import UserError, shown


def absolute(path: Path) -> Path:
    """The absolute path, without links and ``~``."""
    try:
        return path.expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:  # an unknown user, links in a circle, a NUL
        raise UserError(f"{shown(path)}: cannot be a path: {error}") from None
