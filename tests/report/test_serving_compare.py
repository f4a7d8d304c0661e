"""The comparison of serving in words and as a page."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
import yaml
from rich.console import Console

from steelyard.report.serving_compare import print_serving_comparison
from steelyard.report.serving_compare_page import serving_comparison_page
from steelyard.report.serving_words import rows, sentences, tally
from steelyard.search.compare.comparison import ServingComparison, compare_serving
from steelyard.search.compare.given import read_given
from steelyard.search.compare.plots import differences
from support.report_text import charts_of, words

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ServingComparison:
    folder = tmp_path_factory.mktemp("scenarios")
    workload = {"arrivals": {"kind": "poisson", "rate": 8}, "requests": 50, "prompt": 600, "output": 60}
    shared = {"model": "llama-3.1-8b", "cost": {"source": "analytic"}, "workload": workload, "slo": {"ttft_p95": 0.001}}
    fleets: dict[str, dict[str, Any]] = {"one": {"tp": 1}, "two": {"tp": 2}, "round": {"tp": 1, "router": "random"}}
    for name, more in fleets.items():
        called = HOSTILE.replace("/", "") if name == "two" else name
        text = yaml.safe_dump({**shared, "name": called, "fleet": {"gpu": "h100", **more}})
        (folder / f"{name}.yaml").write_text(text)
    return compare_serving(read_given([folder / f"{name}.yaml" for name in ("one", "two", "round")], []), 5)


def test_the_page_stands_alone(found: ServingComparison) -> None:
    page = serving_comparison_page(found)
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    charts = charts_of(page)
    assert set(charts) == {"ttft", "tpot", "e2e", "difference-0", "difference-1"}
    lines = [each for each in charts["ttft"]["marks"] if each["kind"] == "line"]
    assert [each["name"] for each in lines] == [column.name for column in found.columns]
    assert "NaN" not in page and "nan" not in words(page).lower()


def test_bars_are_the_differences(found: ServingComparison) -> None:
    for chart, difference in zip(differences(found), found.differences, strict=True):
        known = [each for each in difference.figures if each.relative is not None]
        assert [bar.value for bar in chart.bars] == [each.relative for each in known]
        assert [bar.interval for bar in chart.bars] == [each.relative_interval for each in known]
        colours = {"better": "good", "worse": "bad"}
        assert all(bar.hue == colours.get(each.verdict, bar.hue) for bar, each in zip(chart.bars, known, strict=True))
        low, high = chart.ends
        assert low == -high and high >= min(1.0, max(abs(bar.value) for bar in chart.bars))


def test_the_console_says_what_differs_and_what_matters(found: ServingComparison) -> None:
    console = Console(record=True, width=80, file=StringIO())
    print_serving_comparison(found, console)
    text = console.export_text()
    assert "fleet.tp: 1 -> 2" in text and "fleet.router: round-robin -> random" in text
    told = [line for line, state in sentences(found.differences[0]) if state == "better"]
    assert any(
        re.match(r"TPOT p95: \d+ % lower \(\d+ to \d+ % over seeds\), from .* ms to .* ms: better", t) for t in told
    )
    assert "GPUs: 100 % higher, from 1 to 2: worse" in text
    assert all(len(row.cells) == 3 for row in rows(found))
    assert console.width == 80


def test_limits_are_counted(found: ServingComparison) -> None:
    (row,) = [row for row in rows(found) if row.group == "SLO"]
    assert [cell.value for cell in row.cells] == ["1.00 ms: missed"] * 3


def test_the_tally_counts_every_figure(found: ServingComparison) -> None:
    for difference in found.differences:
        counted = sum(map(int, re.findall(r"\b\d+\b", tally(difference).replace("below 1 %", ""))))
        assert counted == len(difference.figures)
