"""Pages in a real browser: Debian's Chromium without a window, driven by Playwright.

The fixture `browser` (in `tests/conftest.py`) lasts for a module: Playwright keeps an event loop, and tests of other
modules begin loops of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from support.paths import DATA

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AXE = DATA / "axe" / "axe.min.js"
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
_OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync")


@contextmanager
def started() -> Iterator[Browser]:
    """A browser; the test is skipped where there is none."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install playwright")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, args=list(_OPTIONS))
        yield found
        found.close()


@dataclass
class Visit:
    """A page that is open, and what it did that it should not."""

    page: Page
    complaints: list[str] = field(default_factory=list)  # errors of scripts and messages of the console
    asked: list[str] = field(default_factory=list)  # addresses that were asked for, but files and data in the page

    def violations(self) -> list[str]:
        """What axe finds against WCAG 2.2 AA."""
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found: dict[str, Any] = self.page.evaluate(
            "tags => axe.run(document, { runOnly: { type: 'tag', values: tags } })", list(WCAG)
        )
        return [
            f"{each['id']}: {node['target']} {node['failureSummary']}"
            for each in found["violations"]
            for node in each["nodes"]
        ]


@contextmanager
def visit(browser: Browser, address: str | Path, width: int = 1440, dark: bool = False, **more: Any) -> Iterator[Visit]:
    """Open a page or a file in a context of its own."""
    scheme: Literal["dark", "light"] = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    try:
        seen = Visit(context.new_page())
        seen.page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.on("request", lambda request: _note(seen, request.url))
        seen.page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        yield seen
    finally:
        context.close()


def _note(seen: Visit, address: str) -> None:
    if not address.startswith(("file:", "data:", "blob:")):
        seen.asked.append(address)
