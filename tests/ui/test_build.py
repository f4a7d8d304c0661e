"""The front end that is committed belongs to its sources, is small, and asks nothing of other servers."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import steelyard
from support.paths import ROOT

STATIC = Path(steelyard.__file__).parent / "ui" / "static"
SOURCES = ROOT / "ui"


def test_it_was_built_from_these_sources() -> None:
    manifest = json.loads((STATIC / "manifest.json").read_text())
    files = [
        SOURCES / name for name in ("package.json", "package-lock.json", "tsconfig.json", "build.mjs", "index.html")
    ]
    files += sorted((SOURCES / "src").iterdir())
    now = {str(path.relative_to(SOURCES)): sha256(path.read_bytes()).hexdigest() for path in files}
    assert manifest == now, "run `make ui`"


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in STATIC.iterdir()) < 1 << 20


def test_it_names_no_other_server() -> None:
    harmless = {"http://www.w3.org"}  # namespaces
    for path in STATIC.iterdir():
        found = set(re.findall(r"https?://[\w.-]+", path.read_text(encoding="utf-8")))
        assert found <= harmless, path.name


def test_the_page_runs_no_inline_script() -> None:
    text = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == [] and " on" not in re.sub(r'href="[^"]*"', "", text)
