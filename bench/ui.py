"""`python -m bench.ui`: how soon the page of `steelyard ui` answers, in Chromium, while nothing else runs.

From a slider's move to the redrawn curves of an 8-replica scenario, at settings that were not seen before; from opening
the page to its first paint, and to 1,000 past results listed. Beside the time on the clock stands the CPU time of the
server with its workers, which another load on the machine changes little: with two cores a move takes at least half
of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
        with page_served(Path(folder)) as (address, server):
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(address)
            opened = [_opened(page, address, server) for _ in range(7)]
            _say("first paint", [paint for paint, _, _ in opened])
            _say(f"{RESULTS:,} results listed", [listed for _, listed, _ in opened], [cpu for _, _, cpu in opened])
            slid = _slid(page, address, server)
            _say("slider to redrawn curves", [clock for clock, _ in slid], [cpu for _, cpu in slid])
        browser.close()


def _say(what: str, milliseconds: Sequence[float], cpu: Sequence[float] = ()) -> None:
    line = f"{what:26} {_percentiles(milliseconds)}   of {len(milliseconds)}"
    print(f"{line}; CPU time {_percentiles(cpu)}" if cpu else line, flush=True)


def _percentiles(milliseconds: Sequence[float]) -> str:
    p50, p95 = np.percentile(milliseconds, [50, 95])
    return f"p50 {p50:6.0f} ms   p95 {p95:6.0f} ms"


def _cpu(server: int) -> float:
    """Milliseconds of CPU time of the server and of its workers, as long as they live."""
    spent, parents = dict[int, float](), dict[int, int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)], spent[int(folder.name)] = int(words[1]), int(words[11]) + int(words[12])
    ours, more = set[int](), {server}
    while more:
        ours |= more
        more = {child for child, parent in parents.items() if parent in more}
    return 1e3 * sum(spent[each] for each in ours) / os.sysconf("SC_CLK_TCK")


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
def page_served(folder: Path) -> Iterator[tuple[str, int]]:
    """The page of a folder, served by a process of its own: its address, and the process's number."""
    command = [sys.executable, "-m", "steelyard", "ui", str(folder), "--no-browser"]
    env = {**os.environ, "STEELYARD_CACHE": str(folder / ".cache")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split(" at ")[-1].strip(), server.pid
        finally:
            server.send_signal(signal.SIGINT)


def _opened(page: Any, address: str, server: int) -> tuple[float, float, float]:
    """Milliseconds from a page's request to its first paint, and to all results; CPU time until then."""
    page.goto("about:blank")
    begun, cpu = time.perf_counter(), _cpu(server)
    page.goto(address.split("?")[0])
    page.wait_for_selector(f"#results tbody tr:nth-child({RESULTS})", state="attached")
    listed = (time.perf_counter() - begun) * 1e3
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    return float(page.evaluate(paint)), listed, _cpu(server) - cpu


def _slid(page: Any, address: str, server: int) -> list[tuple[float, float]]:
    """Milliseconds from a slider's move until the curves are whole and drawn, as the page measures them; CPU time."""
    page.goto(address.split("?")[0] + "#/whatif/eight.yaml")
    page.wait_for_selector('[data-settled="true"]', timeout=120_000)
    sliders, found = page.locator(".slider input"), []
    for place, key in MOVES:
        before, cpu = _drawn(page), _cpu(server)
        sliders.nth(place).press(key)
        while (now := _drawn(page))[:2] == before[:2] or not now[2]:
            time.sleep(0.03)
        spent = _cpu(server) - cpu
        time.sleep(0.05)
        found.append((float(page.get_attribute(".whatif", "data-redrawn")), spent))
    return found


def _drawn(page: Any) -> tuple[str, str, bool]:
    """Which settings are drawn, at which rate, and whether the curves are whole."""
    now = page.evaluate("({...document.querySelector('.whatif').dataset})")
    return now["shape"], now["rate"], now["whole"] == "true"


if __name__ == "__main__":
    main()
