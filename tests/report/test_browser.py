"""The page in a real browser: every figure drawn with finite coordinates, no script error."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steelyard.report.page import render_page
from steelyard.scenario import scenario_from_dict
from steelyard.sim.summary import DynamicsFigures, ServingFigures
from support.report_samples import make_result, no_steps

BROWSER = shutil.which("chromium")
FIGURES = [f"cdf-{m}" for m in ("ttft", "tpot", "itl", "e2e")]
FIGURES += ["throughput", "queue", "batch", "kv", "arrivals", "prompt", "output"]

# Uses the page as a reader would, and leaves what it found where the dumped DOM shows it.
PROBE = """<script>
const said = name => document.querySelector(`#fig-${name} .readout`).textContent;
const hover = name => {
  const svg = document.querySelector(`#fig-${name} svg`);
  if (!svg) return "";
  const box = svg.getBoundingClientRect();
  const middle = { clientX: box.left + box.width / 2, clientY: box.top + 9 };
  svg.dispatchEvent(new PointerEvent("pointermove", middle));
  const text = said(name);
  document.documentElement.dataset[`with_${name.replace("-", "_")}`] = said("kv");
  svg.dispatchEvent(new PointerEvent("pointerleave", {}));
  return text;
};
for (const figure of document.querySelectorAll("figure")) {
  const name = figure.id.slice(4);
  figure.dataset.rest = said(name);
  figure.dataset.hover = hover(name);
}
document.getElementById("log-x").click();
</script></body>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium to draw the figures")


def dump(page: str, folder: Path) -> str:
    """The DOM after the scripts have run."""
    file = folder / "report.html"
    file.write_text(page.replace("</body>", PROBE), encoding="utf-8")
    command = [
        str(BROWSER),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={folder / 'profile'}", "--window-size=1280,900", "--virtual-time-budget=2000"),
        *("--dump-dom", file.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "<html" in done.stdout, done.stderr[-2000:]
    return done.stdout


def drawn(dom: str, *further: str) -> dict[str, list[str]]:
    """The path data of each figure's marks (not of its axes); of those of every page, and of further ones."""
    opening = re.search(r"<html[^>]*>", dom)
    assert opening
    assert "data-error" not in opening[0], opening[0]
    assert 'data-ready="true"' in opening[0]
    found = {}
    for name, content in re.findall(r'<figure id="fig-([\w-]+)".*?>(.*?)</figure>', dom, re.S):
        paths = re.findall(r'<path class="(?:line|area|dots|bars|rules)[^"]*" d="([^"]*)"', content)
        for path in re.findall(r'<path [^>]*?d="([^"]*)"', content):
            assert re.fullmatch(r"[MLHVhvZ\d\s.-]+", path), f"{name}: {path[:80]}"
        assert "NaN" not in content, name
        assert "undefined" not in content, name
        found[name] = paths
    assert set(found) == {*FIGURES, *further} and len(found) == len(FIGURES) + len(further)
    return found


def attributes(dom: str, figure: str) -> dict[str, str]:
    opening = re.search(rf'<figure id="fig-{figure}"([^>]*)>', dom)
    assert opening
    return dict(re.findall(r'data-(\w+)="([^"]*)"', opening[1]))


def test_figures_of_an_ordinary_run(tmp_path: Path) -> None:
    name = "<script>document.documentElement.dataset.error = 'xss'</script> \"quoted\" 'name'"
    slo = {"ttft_p95": {"limit": 0.05, "value": 0.08, "met": False}}
    dom = dump(render_page(make_result(150, 128, rate=60, name=name, labels=(name,), slo=slo), []), tmp_path)
    found = drawn(dom)
    assert all(paths for paths in found.values()), found.keys()
    assert 'class="limit"' in dom
    ttft, queue = attributes(dom, "cdf-ttft"), attributes(dom, "queue")
    assert re.fullmatch(r"p50 [\d.]+ ms p95 [\d.]+ ms p99 [\d.]+ m?s ", ttft["rest"])
    assert re.fullmatch(r"share [\d.]+ % within [\d.]+ m?s ", ttft["hover"])
    assert re.fullmatch(r"running [\d.]+ waiting [\d.]+ at [\d.]+ s ", queue["hover"])
    together = re.search(r'data-with_queue="([^"]*)"', dom)
    assert together
    assert together[1].endswith(queue["hover"].partition("at ")[2]), "cursors of time move as one"


def test_replicas_over_time(tmp_path: Path) -> None:
    result = make_result(150, 4, rate=30)
    changes = [
        {"at": 1, "crash": {"replica": 2, "restart_after": 1}},
        {"at": 1.5, "until": 4, "slow": {"replica": 1, "factor": 2}},
    ]
    written = result.scenario.model_dump(mode="json", exclude_unset=True)
    result.scenario = scenario_from_dict({**written, "dynamics": changes})
    serving = ServingFigures(name="serve", replicas=((0.0, 4), (1.0, 3), (2.0, 4)), gpu_hours_up=0.1)
    told = DynamicsFigures(crashes=1, retried_requests=3, retries=3, gpu_hours_up=0.1, pools=(serving,))
    result.summary = replace(result.summary, dynamics=told)
    dom = dump(render_page(result, []), tmp_path)
    spans, area, line, crash, restart = drawn(dom, "serving-0")["serving-0"]
    assert area.endswith("Z") and spans.count("Z") == 1 and line.count("L") == 5
    assert crash.count("M") == restart.count("M") == 1
    down, up = (float(path[1:].split()[0]) for path in (crash, restart))
    corners = [tuple(map(float, corner.split())) for corner in line[1:].split("L")]
    assert [x for x, _ in corners[1:5]] == [down, down, up, up], "the line steps where the engine crashes and is back"
    heights = [y for _, y in corners]
    assert heights[0] == heights[1] == heights[4] == heights[5] < heights[2] == heights[3]
    said = attributes(dom, "serving-0")
    assert said["rest"] == "serving 3 to 4 crash  restart  slow GPUs  "
    assert re.fullmatch(r"serving 4 slow GPUs  at [\d.]+ s ", said["hover"])


@pytest.mark.parametrize(
    ("result", "empty"),
    [
        pytest.param(make_result(1, 1, reject=0, output=1), {"cdf-tpot", "cdf-itl"}, id="one token"),
        pytest.param(no_steps(make_result(9)), {*FIGURES} - {"prompt", "output"}, id="none served"),
    ],
)
def test_figures_with_little_to_draw(result: Any, empty: set[str], tmp_path: Path) -> None:
    dom = dump(render_page(result, []), tmp_path)
    found = drawn(dom)
    assert {name for name, paths in found.items() if not paths} == empty
    assert dom.count("Nothing to show: ") >= len(empty)
