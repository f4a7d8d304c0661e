"""Where the tests find files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared" / "data"  # captures and traces that are not in the repository; tests skip without them
