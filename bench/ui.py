"""`python -m bench.ui`: how soon the page of `steelyard ui` answers, in Chromium, while nothing else runs.

From a slider's move to the redrawn curves of an 8-replica scenario, at settings that were not seen before; from opening
the page to its first paint, and to 1,000 past results listed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import load_scenario, simulate

CHROMIUM = "/usr/bin/chromium"
RESULTS = 1000
EIGHT = """\
model: llama-3.1-8b
fleet: {gpu: h200, replicas: 8, router: least-outstanding}
workload:
  arrivals: {kind: poisson, rate: 80}
  requests: 4000
  prompt: {kind: lognormal, median: 900, p95: 3000, max: 16384}
  output: {kind: lognormal, median: 150, p95: 600, max: 2048}
slo: {ttft_p95: 1.0, tpot_p95: 0.05}
seed: 1
"""
# Place of a slider and the keys that are pressed on it, each to settings that have not been drawn yet.
MOVES = (
    *[(1, "ArrowLeft")] * 4,  # replicas
    *[(2, "ArrowRight")] * 2,  # TP
    *[(4, "ArrowLeft")] * 3,  # batch limit
    *[(0, "ArrowRight")] * 8,  # rate
    *[(3, "ArrowRight")] * 3,  # prefill : decode
    *[(1, "ArrowRight")] * 3,
    *[(4, "ArrowRight")] * 1,
    *[(0, "ArrowLeft")] * 4,
)


def main() -> None:
    """Print a line for each."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        _fill(Path(folder))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with page_served(Path(folder)) as address:
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(address)
            painted, listed = zip(*(_opened(page, address) for _ in range(7)), strict=True)
            _say("first paint", painted)
            _say(f"{RESULTS:,} results listed", listed)
            _say("slider to redrawn curves", _slid(page, address))
        browser.close()


def _say(what: str, milliseconds: Any) -> None:
    p50, p95 = np.percentile(milliseconds, [50, 95])
    print(f"{what:26} p50 {p50:6.0f} ms   p95 {p95:6.0f} ms   of {len(milliseconds)}", flush=True)


def _fill(folder: Path) -> None:
    """A scenario, and copies of one result."""
    (folder / "eight.yaml").write_text(EIGHT, encoding="utf-8")
    first = folder / "runs" / "chat-1"
    simulate(load_scenario(folder / "eight.yaml", ["workload.requests=200"])).save(first)
    files = {name: (first / name).read_bytes() for name in ("summary.json", "scenario.json")}
    for number in range(2, RESULTS + 1):
        other = folder / "runs" / f"chat-{number}"
        other.mkdir()
        for name, content in files.items():
            (other / name).write_bytes(content)


@contextmanager
def page_served(folder: Path) -> Iterator[str]:
    """The page of a folder, served by a process of its own; its address."""
    command = [sys.executable, "-m", "steelyard", "ui", str(folder), "--no-browser"]
    env = {**os.environ, "STEELYARD_CACHE": str(folder / ".cache")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split(" at ")[-1].strip()
        finally:
            server.send_signal(signal.SIGINT)


def _opened(page: Any, address: str) -> tuple[float, float]:
    """Milliseconds from a page's request to its first paint, and to all results."""
    page.goto("about:blank")
    begun = time.perf_counter()
    page.goto(address.split("?")[0])
    page.wait_for_selector(f"#results tbody tr:nth-child({RESULTS})", state="attached")
    listed = (time.perf_counter() - begun) * 1e3
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    return float(page.evaluate(paint)), listed


def _slid(page: Any, address: str) -> list[float]:
    """Milliseconds from a slider's move until the curves are whole and drawn, as the page measures them."""
    page.goto(address.split("?")[0] + "#/whatif/eight.yaml")
    page.wait_for_selector('[data-settled="true"]', timeout=120_000)
    sliders, found = page.locator(".slider input"), []
    for place, key in MOVES:
        before = _drawn(page)
        sliders.nth(place).press(key)
        while (now := _drawn(page))[:2] == before[:2] or not now[2]:
            time.sleep(0.01)
        time.sleep(0.05)
        found.append(float(page.get_attribute(".whatif", "data-redrawn")))
    return found


def _drawn(page: Any) -> tuple[str, str, bool]:
    """Which settings are drawn, at which rate, and whether the curves are whole."""
    now = page.evaluate("({...document.querySelector('.whatif').dataset})")
    return now["shape"], now["rate"], now["whole"] == "true"


if __name__ == "__main__":
    main()
