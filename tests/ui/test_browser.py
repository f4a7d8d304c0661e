"""The page in Chromium, as people use it: clean on every view, charts drawn, sliders, runs, keyboard, and attacks.

One browser and one server for the module. Nothing is asked of any other server, and no console has an error. Waits are
for conditions; their limit is for a page that never gets there, and speed is measured in `bench/`.
"""

from __future__ import annotations

import csv
import http.client
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from support.page import CHAT, HOSTILE, fill, served
from support.paths import DATA

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

MOST_SECONDS = 180.0  # for a condition to come true while other programs use all cores; chosen
AXE = (DATA / "axe" / "axe.min.js").read_text(encoding="utf-8")
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
VIEWS = {
    "home": ("#/", "#results tbody tr"),
    "edit": ("#/edit/chat.yaml", '.editor[data-ready="true"]'),
    "what-if": ("#/whatif/chat.yaml", '.whatif[data-whole="true"]'),
    "serving": ("#/result/chat-1", '[data-figure="kv"] .line'),
    "post-training": ("#/result/posttrain-1", '[data-figure="waterfall"] rect'),
    "search": ("#/result/search-search", '[data-figure="pareto"] circle'),
    "live": ("#/result/live-1", '[data-figure="live-engines"] rect'),
    "compare": ("#/compare/chat-1/chat-2", '[data-figure="compare-ttft"] .line'),
}
CHARTS = {
    "what-if": {"whatif-ttft", "whatif-tpot", "whatif-tokens"},
    "serving": {"cdf-ttft", "cdf-tpot", "cdf-e2e", "queue", "throughput", "batch", "kv"},
    "post-training": {"gantt", "waterfall", "roles"},
    "search": {"pareto"},
    "live": {"live-roles", "live-engines"},
    "compare": {"compare-ttft", "compare-tpot"},
}

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here: apt-get install chromium")


class Site:
    """The page of a folder, and what browsers have been told and have asked for."""

    def __init__(self, browser: Browser, folder: Path, address: str) -> None:
        self.browser, self.folder, self.address = browser, folder, address
        self.home = address.partition("?")[0]
        self.complaints: list[str] = []
        self.asked: list[str] = []

    def open(self, view: str = "#/", wait: str = "h1", **settings: Any) -> Page:
        """A view in a new window."""
        page = self.browser.new_context(viewport=settings.pop("viewport", WIDE), **settings).new_page()
        page.set_default_timeout(MOST_SECONDS * 1000)
        page.on("console", lambda each: self._said(each.type, each.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._asks)
        page.on("request", lambda each: self.asked.append(each.url))
        page.goto(self.address)
        page.wait_for_selector("h1")
        page.goto(self.home + view)
        page.wait_for_selector(wait)
        return page

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _asks(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def clean(self) -> None:
        """No complaint, and nothing asked of another server."""
        assert not self.complaints
        others = {url for url in self.asked if not url.startswith((self.home, "data:", "blob:"))}
        assert not others


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and a result of every kind. Made before the browser's loop runs."""
    home = tmp_path_factory.mktemp("page")
    fill(home)
    return home


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as (address, _):
        yield address


@pytest.fixture
def site(folder: Path, address: str, browser: Browser) -> Iterator[Site]:
    """The page, which has to be clean at the end of a test; its windows are closed."""
    found = Site(browser, folder, address)
    yield found
    for each in browser.contexts:
        each.close()
    found.clean()


SHAPES = """all => all.map(each => each.getAttribute("d")
    || ["x", "y", "width", "height", "cx", "cy", "r"].map(name => each.getAttribute(name)).join(" "))"""


def comes_true(page: Page, condition: Callable[[], bool]) -> None:
    """Wait for what no selector can say."""
    until = time.monotonic() + MOST_SECONDS
    while not condition():
        assert time.monotonic() < until, "it does not come true"
        page.wait_for_timeout(50)


def fits(page: Page, width: int) -> None:
    """Nothing of the page is wider than its window, once figures have their widths."""
    comes_true(page, lambda: page.evaluate("document.scrollingElement.scrollWidth") <= width)


def shapes_of(figure: str) -> str:
    return f'[data-figure="{figure}"] svg :is(path, rect, circle)'


def coordinates(page: Page, figure: str) -> list[str]:
    """The shapes of a chart."""
    found: list[str] = page.eval_on_selector_all(shapes_of(figure), SHAPES)
    return found


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_clean_and_drawn_at_both_widths_light_and_dark(site: Site, view: str) -> None:
    for viewport, scheme in ((WIDE, "light"), (NARROW, "dark")):
        page = site.open(*VIEWS[view], viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        for figure in CHARTS.get(view, set()):
            page.locator(shapes_of(figure)).nth(3).wait_for(state="attached")
            shapes = coordinates(page, figure)
            assert not [each for each in shapes if "NaN" in each or "Infinity" in each], figure
        fits(page, viewport["width"])
        page.evaluate(AXE)
        found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})")
        wrong = [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in found["violations"]]
        assert not wrong, f"{scheme} at {viewport['width']}: {wrong}"


def test_sliders_answer_and_a_baseline_stays(site: Site) -> None:
    page = site.open("#/whatif/chat.yaml", '.whatif[data-settled="true"]')
    page.get_by_role("button", name="Pin as baseline").click()
    before = coordinates(page, "whatif-ttft")
    page.get_by_role("slider", name=re.compile("Replicas")).press("ArrowLeft")
    page.wait_for_selector('.whatif[data-shape^="3 "][data-settled="true"]')
    now = coordinates(page, "whatif-ttft")
    assert now != before and page.locator('[data-figure="whatif-ttft"] .line.hue2').count() > 0
    page.get_by_role("slider", name=re.compile("Prefill")).press("ArrowRight")
    page.wait_for_selector('.whatif[data-shape^="3 1 "][data-settled="true"]')
    table = page.get_by_role("region", name="Now and baseline").inner_text()
    assert "1 + 2 replicas" in table and "4 replicas" in table
    page.get_by_role("slider", name=re.compile("GPUs per replica")).press("End")
    page.wait_for_selector('.whatif[data-shape^="3 1 8"][data-settled="true"]')
    assert page.locator(".whatif .errors").count() == 0


def test_a_broken_scenario_shows_its_mistake_at_the_key(site: Site) -> None:
    (site.folder / "broken.yaml").write_text(CHAT.replace("requests: 300", "request: 300"))
    page = site.open("#/edit/broken.yaml", ".problems li")
    assert "Line 5" in page.locator(".problems li").inner_text()
    assert "workload.request: unknown key; did you mean 'requests'?" in page.locator(".problems li").inner_text()
    assert page.locator(".cm-lintRange-error").inner_text() == "request"
    page.locator("button.main:disabled", has_text="Run").wait_for()
    page.get_by_role("button", name="Line 5").click()
    page.keyboard.press("Home")  # of the text in the line
    for _ in range(len("request")):
        page.keyboard.press("ArrowRight")
    page.keyboard.type("s")
    page.locator("aside h2", has_text="No problems").wait_for()
    page.keyboard.press("Control+s")
    page.get_by_text("Saved.", exact=True).wait_for()  # not "Not saved."
    assert (site.folder / "broken.yaml").read_text() == CHAT


def test_the_editor_completes_keys_and_values_and_finds_what_does_not_fit(site: Site) -> None:
    (site.folder / "large.yaml").write_text(CHAT.replace("llama-3.1-8b", "llama-3.1-70b"))
    page = site.open("#/edit/large.yaml", ".problems li")
    assert (
        "Line 1" in page.locator(".problems li").inner_text() or "Line 2" in page.locator(".problems li").inner_text()
    )
    page.locator(".cm-content").click()
    page.keyboard.press("Control+End")
    page.keyboard.type("engine: {max_num_s")
    page.locator(".cm-tooltip-autocomplete li", has_text="max_num_seqs").wait_for()
    page.wait_for_timeout(300)  # the editor ignores keys in the first 75 ms, so that nobody accepts by accident
    page.keyboard.press("Enter")
    page.keyboard.type("64")
    page.locator(".cm-content", has_text="engine: {max_num_seqs: 64}").wait_for()


def test_a_run_shows_progress_ends_with_its_result_and_can_be_fetched(site: Site) -> None:
    page = site.open()
    page.get_by_role("button", name="Run chat.yaml").click()
    page.wait_for_selector(".progress")
    page.wait_for_url(re.compile("#/result/chat-3"))
    page.wait_for_selector(".cards")
    run = site.folder / "runs" / "chat-3"
    for name in ("summary.json", "requests.parquet", "report.html"):
        with page.expect_download() as fetched:
            page.get_by_role("link", name=name, exact=True).click()
        assert fetched.value.suggested_filename == f"chat-3-{name}"
        assert fetched.value.path().read_bytes() == (run / name).read_bytes()
    with page.expect_download() as fetched:
        page.get_by_role("link", name="requests.csv").click()
    rows = list(csv.DictReader(fetched.value.path().read_text().splitlines()))
    assert len(rows) == 300 and {"ttft", "arrival"} <= rows[0].keys()
    with page.expect_download() as fetched:
        page.get_by_role("button", name="Time to first token: save as SVG").click()
    assert fetched.value.path().read_text().startswith("<svg")


def test_a_run_is_cancelled_and_leaves_nothing(site: Site) -> None:
    (site.folder / "long.yaml").write_text(CHAT.replace("requests: 300", "requests: 2000000"))
    page = site.open("#/edit/long.yaml", '.editor[data-ready="true"]')
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector(".progress")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("was cancelled").wait_for()
    assert not (site.folder / "runs" / "long-1").exists()


def test_results_are_searched_sorted_and_deleted_only_after_a_question(site: Site) -> None:
    shutil.copytree(site.folder / "runs" / "chat-1", site.folder / "runs" / "spare-1")
    page = site.open(*VIEWS["home"])
    names = page.locator("#results tbody th")
    page.get_by_role("button", name="GPUs").click()
    page.locator('#results th[aria-sort="ascending"]', has_text="GPUs").wait_for()
    first = names.first.inner_text()
    page.get_by_role("button", name="GPUs").click()
    page.locator('#results th[aria-sort="descending"]', has_text="GPUs").wait_for()
    assert names.first.inner_text() != first
    page.locator("#results").get_by_role("searchbox").fill("spare")
    comes_true(page, lambda: names.all_inner_texts() == ["spare-1"])
    page.get_by_label("Choose spare-1").check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert (site.folder / "runs" / "spare-1").exists()
    page.get_by_role("button", name="Delete 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text(re.compile("^0 of")).wait_for()
    assert not (site.folder / "runs" / "spare-1").exists()


def test_a_point_of_a_search_leads_to_its_run(site: Site) -> None:
    page = site.open(*VIEWS["search"])
    point = page.locator('[data-figure="pareto"] a').first
    point.hover()
    page.locator('[data-figure="pareto"] .readout', has_text="requests/s").wait_for()
    point.press("Enter")
    page.wait_for_url(re.compile("#/result/search-search-"))
    page.wait_for_selector(".cards")
    found = json.loads((site.folder / "runs" / "search-search" / "search.json").read_text())
    choice = found["levels"][0]["choices"][0]
    name = page.url.rpartition("/")[2]
    summary = json.loads((site.folder / "runs" / name / "summary.json").read_text())
    assert summary["gpus"] == choice["gpus"] and abs(summary["ttft"]["p95"] / choice["values"]["ttft_p95"] - 1) < 0.5


def test_a_live_run_tells_every_decision(site: Site) -> None:
    from steelyard.live.explain import explanations, log_of

    page = site.open(*VIEWS["live"])
    told = list(explanations(log_of(site.folder / "runs" / "live-1" / "controller.db")))
    last = told[-1].sentence
    page.locator(".told li", has_text=last[:60]).first.wait_for()
    assert f"{len(told):,} in all" in page.locator("#main").inner_text()
    assert "The run is over." in page.locator(".verdict").inner_text()


def test_everything_is_done_by_keyboard_alone(site: Site) -> None:
    page = site.open(*VIEWS["home"])
    page.locator("h1").focus()

    def tab_to(name: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if (
                page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")
                == name
            ):
                return
        raise AssertionError(f"{name} cannot be reached")

    tab_to("What if: chat.yaml")
    page.keyboard.press("Enter")
    page.wait_for_selector('.whatif[data-whole="true"]')
    assert page.evaluate("document.activeElement.tagName") in ("H1", "BODY", "MAIN")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.type") == "range"
    page.keyboard.press("ArrowRight")
    page.wait_for_selector('.whatif[data-settled="true"]:not([data-rate="20"])')
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "svg":
            break
    page.keyboard.press("ArrowRight")
    page.locator('[data-figure="whatif-ttft"] .readout', has_text="at ").wait_for()
    page.keyboard.press("Escape")
    page.goto(site.home + "#/edit/chat.yaml")
    page.wait_for_selector('.editor[data-ready="true"]')
    page.locator(".cm-content").focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.classList.contains('cm-content')"), "Tab leaves the editor"


def test_names_from_files_are_text(site: Site) -> None:
    written = CHAT + f"name: {json.dumps('=1+1 <img src=x onerror=alert(1)>')}\n"
    (site.folder / "hostile.yaml").write_text(written)
    shutil.copytree(site.folder / "runs" / "chat-1", site.folder / "runs" / "<img src=x onerror=alert(1)>")
    summary = site.folder / "runs" / "<img src=x onerror=alert(1)>" / "summary.json"
    found = json.loads(summary.read_text())
    summary.write_text(json.dumps({**found, "name": HOSTILE, "model": HOSTILE, "notes": [HOSTILE]}))
    page = site.open(f"#/result/{quote('<img src=x onerror=alert(1)>')}", ".cards")
    assert HOSTILE in page.locator("#main").inner_text()
    page.goto(site.home + "#/")
    page.wait_for_selector("#results tbody tr")
    assert page.locator("img").count() == 0 and HOSTILE in page.locator("#results").inner_text()
    page.goto(site.home + f"#/edit/{quote(HOSTILE)}")
    page.wait_for_selector(".errors")
    assert page.locator("img").count() == 0
    site.complaints = [each for each in site.complaints if "status of 400" not in each and "status of 404" not in each]


def test_two_tabs_do_not_overwrite_each_other(site: Site) -> None:
    (site.folder / "shared.yaml").write_text(CHAT)
    tabs = [site.open("#/edit/shared.yaml", '.editor[data-ready="true"]') for _ in range(2)]
    for number, page in enumerate(tabs):
        page.locator(".cm-content").click()
        page.keyboard.press("Control+End")
        page.keyboard.type(f"# tab {number}")
        page.get_by_role("button", name="Save").click()
        told = page.get_by_text("Saved.", exact=True), page.get_by_text("has changed since it was opened")
        told[number].wait_for()
    assert (site.folder / "shared.yaml").read_text() == f"{CHAT}# tab 0"
    site.complaints = [each for each in site.complaints if "409" not in each]


def test_attacks_by_address_and_size_are_refused(site: Site) -> None:
    (site.folder.parent / "secret.yaml").write_text("secret: 1")
    page = site.open()
    for path in (
        *("/api/scenarios/..%2fsecret.yaml", "/api/scenarios/%2e%2e/secret.yaml", "/api/scenarios/%2Fetc%2Fpasswd"),
        *("/static/..%2f..%2fapp.py", "/static/%2e%2e/app.py", "/api/runs/chat-1/files/..%2f..%2fchat.yaml"),
        *("/api/runs/..%2f..%2f/files/chat.yaml", "/api/runs/chat-1/csv/..%2frequests", "/docs", "/openapi.json"),
    ):
        answer = page.request.get(site.home.rstrip("/") + path)
        assert answer.status in (400, 404), path
        assert "secret" not in answer.text().replace("secret.yaml", "") and "root:" not in answer.text()
    connection = http.client.HTTPConnection(site.home.removeprefix("http://").rstrip("/"))
    own = {"origin": site.home.rstrip("/"), "content-length": str(100 << 20)}
    cookie = "; ".join(f"{each['name']}={each['value']}" for each in page.context.cookies())
    connection.request("PUT", "/api/scenarios/huge.yaml", headers={**own, "cookie": cookie})
    assert connection.getresponse().status == 413 and not (site.folder / "huge.yaml").exists()
    connection.close()
    with (site.folder / "huge.yaml").open("wb") as file:
        file.truncate(100 << 20)
    page.goto(site.home + "#/edit/huge.yaml")
    page.get_by_text("more than 1,048,576 bytes").wait_for()
    (site.folder / "huge.yaml").unlink()
    stranger = site.browser.new_context().new_page()
    assert stranger.goto(site.home).status == 403  # type: ignore[union-attr]
    site.complaints = [each for each in site.complaints if "Failed to load resource" not in each]


def test_another_sites_page_gets_nothing(site: Site, tmp_path: Path) -> None:
    page = site.open()
    elsewhere = page.context.new_page()
    elsewhere.goto("data:text/html,<h1>elsewhere</h1>")
    for method in ("GET", "POST"):
        told = elsewhere.evaluate(
            "([url, method]) => fetch(url, {method, credentials: 'include'}).then(a => a.text(), error => 'refused')",
            [site.home + ("api/home" if method == "GET" else "api/delete"), method],
        )
        assert told == "refused"
    elsewhere.set_content(f'<iframe src="{site.home}"></iframe>')
    assert len(elsewhere.frames) == 2
    assert all(
        "Scenarios and results" not in (frame.content() if frame.parent_frame else "") for frame in elsewhere.frames
    )
    site.complaints.clear()
    site.asked = [url for url in site.asked if not url.startswith("data:")]


def test_a_server_that_is_killed_leaves_runs_whole_and_the_page_reconnects(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, cache = tmp_path_factory.mktemp("killed"), tmp_path_factory.mktemp("cache")
    (folder / "chat.yaml").write_text(CHAT.replace("requests: 300", "requests: 20000"))
    with served(folder, cache=cache) as (address, server):
        site = Site(browser, folder, address)
        page = site.open()
        page.get_by_role("button", name="Run chat.yaml").click()
        page.wait_for_selector(".progress")
        server.kill()
        server.wait()
        page.get_by_role("alert").filter(has_text="The server of this page is gone").wait_for()
    run = folder / "runs" / "chat-1"
    with served(folder, cache=cache) as (again, _):
        assert again == address, "after a crash a server has the same address, so that open pages find it"
        page.wait_for_selector('main[data-connection="connected"]')
        comes_true(page, run.exists)
        names = {each.name for each in run.iterdir()}
        assert names == {"summary.json", "scenario.json", "requests.parquet", "steps.parquet", "report.html"}
        assert json.loads((run / "summary.json").read_text())["requests"] == 20000
        page.goto(address.partition("?")[0] + "#/")
        page.get_by_role("link", name="chat-1", exact=True).wait_for()
    for each in browser.contexts:
        each.close()
