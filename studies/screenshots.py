"""`python -m studies screenshots`: pictures of reports and of the local page for the docs, by the system's Chromium."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from steelyard import UserError
from studies.runs import EXAMPLES
from studies.ui_screenshots import take_ui

IMAGES = EXAMPLES.parent / "docs" / "images"
_CAPTURE = EXAMPLES.parent / "tests" / "data" / "h200-recorded" / "llama-3.1-8b"
UI = "ui"  # all pictures of the local page
_SMALL = ("--set", "workload.requests=1000")


class Shot(NamedTuple):
    """A picture: what to run, the page that it writes in its folder, and the screen."""

    name: str
    command: tuple[str, ...]
    page: str
    width: int = 1240
    height: int = 900
    dark: bool = False


SHOTS = (
    Shot("report", ("simulate", "examples/quickstart.yaml", "--out", "{folder}/run"), "run/report.html"),
    Shot(
        "reports/phone",
        ("simulate", "examples/pdd.yaml", *_SMALL, "--out", "{folder}/run"),
        "run/report.html",
        width=390,
        height=1400,
    ),
    Shot("reports/search", ("search", "examples/search/cheapest.yaml", "--out", "{folder}"), "search.html"),
    Shot(
        "reports/comparison",
        ("compare", "examples/quickstart.yaml", "examples/pdd.yaml", *_SMALL, "--page", "{folder}/page.html"),
        "page.html",
        height=1100,
    ),
    Shot("reports/validation", ("validate", str(_CAPTURE), "--report", "{folder}/page.html"), "page.html", height=1100),
    Shot(
        "reports/posttrain",
        ("posttrain", "examples/posttrain/search-48.yaml", "--set", "steps=6", "--out", "{folder}/run"),
        "run/report.html",
        height=1100,
        dark=True,
    ),
)


def main(chosen: Sequence[str]) -> None:
    """Take the chosen pictures, or all of them."""
    names = [*(shot.name for shot in SHOTS), UI]
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise UserError(f"no picture is called {unknown[0]}; there are {', '.join(names)}")
    for shot in SHOTS:
        if not chosen or shot.name in chosen:
            with TemporaryDirectory() as folder:
                take(shot, Path(folder), IMAGES / f"{shot.name}.png")
    if not chosen or UI in chosen:
        with chromium() as browser:
            take_ui(browser, IMAGES)


def take(shot: Shot, folder: Path, picture: Path) -> None:
    """Run the command, and take the picture of its page."""
    command = [part.replace("{folder}", str(folder)) for part in shot.command]
    run([sys.executable, "-m", "steelyard", *command], cwd=EXAMPLES.parent, check=True, stdout=sys.stderr)
    photograph(folder / shot.page, picture, shot)


def photograph(page: Path, picture: Path, shot: Shot) -> None:
    """The top of a page as a reader's screen shows it."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        seen = browser.new_page(
            viewport={"width": shot.width, "height": shot.height}, color_scheme="dark" if shot.dark else "light"
        )
        seen.goto(page.resolve().as_uri())
        seen.wait_for_selector("html[data-ready]")
        seen.screenshot(path=picture)


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's Chromium, without a window."""
    path = shutil.which("chromium")
    if path is None:
        raise UserError("pictures need Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright  # a developer's dependency

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
