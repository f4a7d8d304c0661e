"""What made a page: the version, the commit if it runs from a checkout, and the day."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def made_by() -> str:
    """For a line of a generated page."""
    today = datetime.now(UTC).date().isoformat()
    commit = commit_of(_PACKAGE)
    return f"Steelyard {version('steelyard')}{f', commit {commit}' if commit else ''}, {today}"


def commit_of(package: Path) -> str:
    """The commit of a package in its own checkout, and whether it was changed since; empty if it has none."""
    top = _git(package, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() / "src" / package.name != package.resolve():
        return ""  # installed, perhaps inside the checkout of something else
    changed = _git(package, "status", "--porcelain", "--", ".")
    return _git(package, "rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def _git(folder: Path, *words: str) -> str:
    """What git says; nothing if there is none."""
    try:
        said = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""
