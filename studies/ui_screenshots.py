"""Pictures of the local page for docs/ui.md: `python -m studies screenshots ui`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.ui import EIGHT, page_served
from steelyard.ui.starting import starter_text


def take_ui(browser: Any, images: Path) -> None:
    """A run, a post-training run and a what-if, on the page of a folder of their own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "fleets"
        folder.mkdir()
        (folder / "chat.yaml").write_text(EIGHT, encoding="utf-8")
        (folder / "posttrain.yaml").write_text(starter_text("posttrain"), encoding="utf-8")
        for command, scenario, *more in (("simulate", "chat", "--no-intervals"), ("posttrain", "posttrain")):
            words = [command, f"{scenario}.yaml", "--out", f"runs/{scenario}-1", *more]
            subprocess.run([sys.executable, "-m", "steelyard", *words], cwd=folder, check=True)
        with page_served(folder) as (address, _):
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.set_default_timeout(120_000)
            page.goto(address)
            page.wait_for_selector("h1")
            _take_all(page, address.partition("?")[0], images)


def _take_all(page: Any, home: str, images: Path) -> None:
    page.goto(f"{home}#/result/chat-1")
    page.wait_for_selector('[data-figure="kv"] .line')
    _take(page, images / "ui-result.png")
    page.goto(f"{home}#/result/posttrain-1")
    page.wait_for_selector('[data-figure="waterfall"] rect')
    _take(page, images / "ui-posttrain.png")
    page.goto(f"{home}#/whatif/chat.yaml")
    page.wait_for_selector('[data-settled="true"]')
    page.get_by_role("button", name="Pin as baseline").click()
    for _ in range(2):
        page.locator(".slider input").nth(1).press("ArrowLeft")
    page.wait_for_selector('.whatif[data-shape^="6 "][data-settled="true"]')
    _take(page, images / "ui-whatif.png")


def _take(page: Any, picture: Path) -> None:
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(200)
    page.screenshot(path=str(picture))
