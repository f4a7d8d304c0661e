"""Names of scenarios as names of files."""

from __future__ import annotations

import re

_MOST, _MOST_BYTES = 80, 200  # characters, and bytes


def file_name(name: str) -> str:
    """A name that every file system takes, without folders in it."""
    stem = re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:_MOST] or "run"
    return stem.encode()[:_MOST_BYTES].decode(errors="ignore")
