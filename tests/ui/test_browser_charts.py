"""Charts of the page in Chromium: as wide as their boxes, with whole steps as ticks, and no formulas in CSV."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from support.browser import started, visit
from support.page import fill, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FORMULA = '=HYPERLINK("http:..x")'

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a folder with a result whose name a spreadsheet would run."""
    folder: Path = tmp_path_factory.mktemp("charts")
    fill(folder)
    shutil.copytree(folder / "runs" / "chat-1", folder / "runs" / FORMULA)
    with served(folder) as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    """One browser. Its loop begins once the folder is there, which takes a loop of its own."""
    with started() as found:
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with visit(browser, address) as seen:
        seen.page.set_default_timeout(180_000)
        seen.page.wait_for_selector("h1")
        yield seen.page
        assert not seen.complaints


def test_a_chart_that_waits_for_its_data_is_as_wide_as_its_box(page: Page, address: str) -> None:
    """Else its text would be scaled with it."""
    page.goto(address.partition("?")[0] + "#/whatif/chat.yaml")
    page.wait_for_selector('.whatif[data-whole="true"]')
    box = page.locator('[data-figure="whatif-ttft"] .plot')
    wide, drawn = box.bounding_box(), box.locator("svg").get_attribute("width")
    assert wide is not None and abs(float(drawn or 0) - wide["width"]) <= 1


def test_ticks_of_steps_are_whole_and_none_comes_twice(page: Page, address: str) -> None:
    page.goto(address.partition("?")[0] + "#/result/posttrain-1")
    page.wait_for_selector('[data-figure="roles"] .line', state="attached")
    ticks = page.locator('[data-figure="roles"] svg > text:not(.label)').all_text_contents()
    assert ticks == ["0", "1", "2"]


def test_a_name_that_is_a_formula_is_text_in_the_csv_of_a_chart(page: Page, address: str) -> None:
    page.goto(address.partition("?")[0] + f"#/compare/chat-1/{quote(FORMULA)}")
    page.wait_for_selector('[data-figure="compare-ttft"] .line')
    with page.expect_download() as fetched:
        page.get_by_role("button", name="Time to first token: save as CSV").click()
    head = next(csv.reader(fetched.value.path().read_text().splitlines()))
    assert head == ["at most", "chat-1", f"'{FORMULA}"]
