"""Every report in a real browser: drawn, without errors or requests, at both widths, in both themes and in print;
its downloads, its keys, and what axe says of it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from steelyard import posttrain_from_dict, scenario_from_dict, simulate
from steelyard.plot import Axis, Chart, Marks
from steelyard.posttrain.run import posttrain
from steelyard.report.frame import Page as Report
from steelyard.report.markup import chart_boxes
from steelyard.report.page import render_page
from steelyard.report.posttrain_page import posttrain_page
from steelyard.report.search_page import search_page
from steelyard.report.serving_compare_page import serving_comparison_page
from steelyard.report.sweep import sweep_page
from steelyard.report.validation import validation_page
from steelyard.scenario.checking import checked
from steelyard.scenario.search import SearchScenario
from steelyard.search.answer import Answer, LevelAnswer
from steelyard.search.compare.comparison import compare_serving
from steelyard.search.compare.given import read_given
from steelyard.search.search import find_fleets
from steelyard.search.sweep_result import sweep
from steelyard.sim.summary import Intervals
from steelyard.validate.compare import validate
from support.browser import Visit, visit
from support.captures import LONE, capture
from support.report_samples import make_result, no_steps
from support.report_text import HOSTILE
from support.sizing import APART, SMALL

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOUR = {**APART, "workload": {**SMALL["workload"], "requests": 120}}
HARMFUL = "=1+1 <script>alert(1) <img src=x onerror=alert(1)>"
FLEETS: dict[str, Any] = {
    **{key: SMALL[key] for key in ("name", "model", "workload", "slo", "cost")},
    "search": {"gpus": 2, "seconds": 1, "requests": 60, "serve": {"gpu": ["h100", "a100"], "tp": [1, 2]}},
}
LOOP: dict[str, Any] = {
    "model": "qwen3-14b",
    "name": "small run",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 8, "group": 4},
    "mode": "asynchronous",
    "rollout": [{"tp": 2, "replicas": 2}],
    "training": {"tp": 4, "dp": 1, "micro_batch_tokens": 16384},
    "steps": 3,
}


def run_page(_: Path) -> str:
    """A run whose names would do harm, with intervals, limits and several pools."""
    result = simulate(scenario_from_dict({**HOUR, "name": HARMFUL}))
    bounds = {
        f"{name}.p{level}": (0.01 * level / 50, 0.02 * level / 50) for name in ("ttft", "tpot") for level in (50, 99)
    }
    result.summary = replace(result.summary, model=HOSTILE, intervals=Intervals(0.9, bounds))
    return render_page(result, [f"mind {HOSTILE}"])


def found_page(_: Path) -> str:
    found = find_fleets(checked(SearchScenario, FLEETS, lambda _: "small"), workers=1)
    return search_page(Answer(found, tuple(LevelAnswer(level, "ttft_p95", None, None) for level in found.levels)))


def compared_page(folder: Path) -> str:
    for name, replicas in (("one", 1), ("two", 2)):
        text = yaml.safe_dump({**SMALL, "name": name, "fleet": {"gpu": "h100", "replicas": replicas}})
        (folder / f"{name}.yaml").write_text(text)
    return serving_comparison_page(compare_serving(read_given([folder / "one.yaml", folder / "two.yaml"], []), 3))


def validated_page(folder: Path) -> str:
    return validation_page(validate(capture(folder / "capture", {"lone": LONE})))


def trained_page(_: Path) -> str:
    return posttrain_page(posttrain(posttrain_from_dict(LOOP)))


def swept_page(folder: Path) -> str:
    (folder / "s.yaml").write_text(yaml.safe_dump(SMALL))
    found = sweep(folder / "s.yaml", {"fleet.tp": [1, 2], "workload.arrivals.rate": [4, 8, 40]})
    return sweep_page(found.plan, found.rows)


PAGES: dict[str, Callable[[Path], str]] = {
    "run": run_page,
    "search": found_page,
    "comparison": compared_page,
    "validation": validated_page,
    "post-training": trained_page,
    "sweep": swept_page,
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a report, made once."""

    @cache
    def made(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        file = folder / "report.html"
        file.write_text(PAGES[kind](folder), encoding="utf-8")
        return file

    return made


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """A page that is open until the end of the test, which must not complain or ask for anything."""
    file = tmp_path / "report.html"
    visits: list[Any] = []

    def open_(page: str) -> Page:
        file.write_text(page, encoding="utf-8")
        visits.append(visit(browser, file))
        return drawn(visits[-1].__enter__())

    yield open_
    for each in visits:
        each.__exit__(None, None, None)


def drawn(seen: Visit) -> Page:
    """The page, once its script is done: every chart has finite marks and nothing was asked of a network."""
    seen.page.wait_for_selector("html[data-ready]")
    assert not seen.complaints and not seen.asked, (seen.complaints, seen.asked)
    charts = seen.page.locator("figure.chart")
    for i in range(charts.count()):
        marks = charts.nth(i).locator("svg path, svg rect, svg circle")
        assert marks.count() or charts.nth(i).locator(".empty").count()
    paths: list[str] = seen.page.evaluate("[...document.querySelectorAll('figure path')].map(p => p.getAttribute('d'))")
    assert all(re.fullmatch(r"(?:[MLHVhvZ\d\s.-]|e-\d+)*", path) for path in paths)
    return seen.page


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_every_report_is_drawn_and_accessible(
    browser: Browser, report: Callable[[str], Path], kind: str, width: int, dark: bool
) -> None:
    with visit(browser, report(kind), width, dark) as seen:
        page = drawn(seen)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the screen"
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", paper))) < 200) is dark
        assert page.locator("main").inner_text().strip()
        assert seen.violations() == []


@pytest.mark.parametrize("kind", ["run", "post-training"])
def test_a_report_is_printed_whole_and_light(browser: Browser, report: Callable[[str], Path], kind: str) -> None:
    with visit(browser, report(kind), dark=True) as seen:
        page = drawn(seen)
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav").is_visible() and not page.locator(".tools button").first.is_visible()
        assert page.evaluate("[...document.querySelectorAll('pre')].every(p => p.scrollHeight <= p.clientHeight + 1)")
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_figures_are_there_without_scripts(browser: Browser, report: Callable[[str], Path]) -> None:
    with visit(browser, report("run"), java_script_enabled=False) as seen:
        charts = seen.page.locator("figure.chart")
        assert charts.count() > 10 and not seen.asked
        assert all(charts.nth(i).locator("svg, .empty").count() == 1 for i in range(charts.count()))
        assert seen.page.locator("#fig-ttft path.line").count() == 1


def test_every_figure_can_be_downloaded(browser: Browser, report: Callable[[str], Path]) -> None:
    with visit(browser, report("run")) as seen:
        page = drawn(seen)
        for name in ("ttft", "queue", "step-time-0"):
            starts = {"PNG": b"\x89PNG\r\n", "SVG": b"<svg ", "CSV": b"name," if name == "step-time-0" else b"series,"}
            for kind, start in starts.items():
                with page.expect_download() as download:
                    page.locator(f"#fig-{name} button", has_text=kind).click()
                assert download.value.suggested_filename == f"{name}.{kind.lower()}"
                content = Path(download.value.path()).read_bytes()
                assert content.startswith(start) and len(content) > 100
                if kind == "SVG":
                    assert b"class=" not in content and b"NaN" not in content and b"<title" not in content
        assert not seen.complaints and not seen.asked


def test_the_table_of_a_figure_is_python_s_and_holds_no_formula(opened: Callable[[str], Page]) -> None:
    names = ('=HYPERLINK("http://x")', "+1", "-1", "@a", "a, b", '"', "plain")
    x, y = np.arange(3.0), np.array([0.5, np.nan, 2e-7])
    marks = [Marks("line", x, y + i, name, low=y) for i, name in enumerate(names)]
    marks.append(Marks("bars", x, y, "", ends=x + 1, labels=["=1", "b", "c"]))
    chart = Chart("a", "=title", Axis("x", "number"), Axis("y", "number"), tuple(marks))
    page = opened(Report(title="=1", lede=(), top="", sections={"A": chart_boxes([chart], "one")}).html())
    with page.expect_download() as download:
        page.get_by_role("button", name="Download =title as CSV").click()
    theirs, ours = (list(csv.reader(StringIO(text))) for text in (Path(download.value.path()).read_text(), chart.csv()))
    assert [[cell(each) for each in row] for row in theirs] == [[cell(each) for each in row] for row in ours]
    assert {row[0] for row in theirs[1:]} == {*(f"'{name}" for name in names[:4]), *names[4:], "'=1", "b", "c"}


def cell(text: str) -> object:
    """A number as far as a page holds it, or the text."""
    try:
        return pytest.approx(float(text), rel=1e-4)
    except ValueError:
        return text


def test_a_figure_answers_to_the_pointer_and_to_keys_alone(browser: Browser, report: Callable[[str], Path]) -> None:
    with visit(browser, report("run")) as seen:
        page = drawn(seen)
        said = page.locator("#fig-ttft .readout")
        rest = said.inner_text()
        assert re.match(r"90% sure\s+p50 [\d.]+ ms, p95", rest)
        page.locator("#log-x").focus()
        page.keyboard.press("Tab")  # to the downloads of the first figure, and past them
        for _ in range(3):
            page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('figure').id") == "fig-ttft"
        page.keyboard.press("ArrowRight")
        assert "share of requests" in said.inner_text() and said.inner_text() != rest
        moved = said.inner_text()
        page.keyboard.press("End")
        assert said.inner_text() != moved and "100 %" in said.inner_text()
        page.keyboard.press("Escape")
        assert said.inner_text() == rest
        page.locator("#fig-queue svg").hover(position={"x": 200, "y": 60})
        at = re.search(r"time [\d.]+ m?s", page.locator("#fig-queue .readout").inner_text())
        assert at and at[0] in page.locator("#fig-kv .readout").inner_text(), "cursors of time move as one"


def test_the_time_axis_can_be_logarithmic_and_the_theme_chosen(browser: Browser, report: Callable[[str], Path]) -> None:
    with visit(browser, report("run")) as seen:
        page = drawn(seen)
        curve = page.locator("#fig-e2e path.line")
        before = curve.get_attribute("d")
        page.locator("#log-x").focus()
        page.keyboard.press("Space")
        assert curve.get_attribute("d") != before
        paper = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(paper)
        page.locator("#theme").click()
        assert page.locator("#theme").inner_text() == "Theme: light" and page.evaluate(paper) == light
        page.locator("#theme").click()
        assert page.locator("#theme").inner_text() == "Theme: dark" and page.evaluate(paper) != light
        assert seen.violations() == []


def test_the_scenario_can_be_copied(browser: Browser, report: Callable[[str], Path]) -> None:
    with visit(browser, report("run"), permissions=["clipboard-read", "clipboard-write"]) as seen:
        page = drawn(seen)
        page.locator("#scenario .copy").first.click()
        page.locator("#scenario .copy", has_text="Copied").first.wait_for()
        copied = yaml.safe_load(page.evaluate("navigator.clipboard.readText()"))
        assert scenario_from_dict(copied) == scenario_from_dict({**HOUR, "name": copied["name"]})


def test_nothing_that_a_name_says_is_run(opened: Callable[[str], Page]) -> None:
    """Even if a name got into the page unescaped, the policy would let no script of it run."""
    script = "<script>document.documentElement.dataset.run = 'yes'</script><img src=x onerror=alert(1)>"
    page = render_page(make_result(40, name="plain"), []).replace("<main>", f"<main>{script}")
    assert script in page
    with pytest.raises(AssertionError, match="Content Security Policy"):
        opened(page)


@pytest.mark.parametrize(
    ("result", "empty"),
    [
        pytest.param(lambda: make_result(1, 1, reject=0, output=1), {"tpot", "itl"}, id="one token"),
        pytest.param(
            lambda: no_steps(make_result(9)), {"ttft", "throughput", "queue", "kv", "arrivals"}, id="none served"
        ),
    ],
)
def test_figures_with_little_to_draw(opened: Callable[[str], Page], result: Callable[[], Any], empty: set[str]) -> None:
    page = opened(render_page(result(), []))
    for name in empty:
        assert page.locator(f"#fig-{name} .empty").inner_text().startswith("Nothing to show")
    assert page.locator("#fig-prompt path.bars").count() == 1
