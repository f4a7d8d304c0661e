"""Pictures of the local page for docs/ui.md: `python -m studies ui`. Needs chromium and playwright."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.ui import CHROMIUM, EIGHT, page_served
from steelyard.errors import UserError
from steelyard.ui.starting import starter_text

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def main(arguments: Sequence[str]) -> None:
    """Take all pictures."""
    if arguments:
        raise UserError("screenshots: takes no changes")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name) / "fleets"
        folder.mkdir()
        (folder / "chat.yaml").write_text(EIGHT, encoding="utf-8")
        (folder / "posttrain.yaml").write_text(starter_text("posttrain"), encoding="utf-8")
        for command, scenario, *more in (("simulate", "chat", "--no-intervals"), ("posttrain", "posttrain")):
            words = [command, f"{scenario}.yaml", "--out", f"runs/{scenario}-1", *more]
            subprocess.run([sys.executable, "-m", "steelyard", *words], cwd=folder, check=True)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with page_served(folder) as (address, _):
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.set_default_timeout(120_000)
            page.goto(address)
            page.wait_for_selector("h1")
            _take_all(page, address.partition("?")[0])
        browser.close()


def _take_all(page: Any, home: str) -> None:
    page.goto(f"{home}#/result/chat-1")
    page.wait_for_selector('[data-figure="kv"] .line')
    _take(page, "ui-result")
    page.goto(f"{home}#/result/posttrain-1")
    page.wait_for_selector('[data-figure="waterfall"] rect')
    _take(page, "ui-posttrain")
    page.goto(f"{home}#/whatif/chat.yaml")
    page.wait_for_selector('[data-settled="true"]')
    page.get_by_role("button", name="Pin as baseline").click()
    for _ in range(2):
        page.locator(".slider input").nth(1).press("ArrowLeft")
    page.wait_for_selector('.whatif[data-shape^="6 "][data-settled="true"]')
    _take(page, "ui-whatif")


def _take(page: Any, name: str) -> None:
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(200)
    page.screenshot(path=str(IMAGES / f"{name}.png"))


if __name__ == "__main__":
    main(sys.argv[1:])
