"""Figures of examples are there and come out the same; studies find what an estimate and a search should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from steelyard import load_scenario, scenario_from_dict, simulate
from steelyard.search.estimates import MeanRequest, answers_per_second, prompts_per_second
from steelyard.sim.setup import set_up
from studies.capacity import Candidate, Contest, Limit
from studies.figures import IMAGES, PAGE, draw, names
from studies.fleets import splits
from studies.gallery import GALLERY
from studies.layouts import Kind
from studies.outcome import Book, Outcome, outcome_of
from studies.page import PAGE as STUDIES_PAGE
from studies.svg import Bars, Curve, Panel, figure
from support.paths import EXAMPLES

TEMPLATES = sorted((EXAMPLES / "studies").glob("*.yaml"))


@pytest.mark.parametrize("name", names())
def test_every_example_has_its_figure_on_the_page(name: str) -> None:
    assert name in GALLERY, f"write a line about {name} in studies/gallery.py"
    image = IMAGES / f"{name}.svg"
    assert image.exists(), f"make it: python -m studies figures {name}"
    root = ElementTree.fromstring(image.read_text(encoding="utf-8"))
    assert len([group for group in root if group.tag.endswith("}g")]) == len(GALLERY[name].panels)
    page = PAGE.read_text(encoding="utf-8")
    assert f"images/examples/{name}.svg" in page and f"examples/{name}.yaml" in page


def test_an_example_is_drawn_in_the_same_bytes_again() -> None:
    assert draw("rollout-burst") == draw("rollout-burst")


def test_a_figure_shows_its_values_to_scale() -> None:
    panel = Panel("p", "x", "y", [Curve("a < b", [0, 10], [0, 50]), Curve("", [0, 10], [100, np.nan], kind="dots")])
    text = figure("t", [panel, Bars("b", "y", ["one", "two"], [("low", [1, 2]), ("high", [3, 2])])])
    root = ElementTree.fromstring(text)
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    (x0, y0), (x1, y1) = (tuple(map(float, point.split(","))) for point in line.attrib["points"].split())
    (dot,) = root.iter("{http://www.w3.org/2000/svg}circle")  # the other one is unknown
    assert x0 < x1 and y0 > y1
    assert y0 - float(dot.attrib["cy"]) == pytest.approx(2 * (y0 - y1), abs=0.2)
    bars = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if float(rect.attrib["width"]) == 46]
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert heights[1] == pytest.approx(3 * heights[0], abs=0.3) and heights[2] == pytest.approx(heights[3], abs=0.2)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_runs_as_it_stands(path: Path) -> None:
    result = simulate(load_scenario(path, ["workload.requests=20"]))
    assert (result.requests["status"] == "finished").all()
    assert f"<!-- {path.stem} -->" in STUDIES_PAGE.read_text(encoding="utf-8")


def small(rate: float, requests: int = 1500) -> dict[str, object]:
    return {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h100"},
        "engine": {"max_num_batched_tokens": 2048, "enable_prefix_caching": False},
        "workload": {"arrivals": {"kind": "poisson", "rate": rate}, "requests": requests, "prompt": 512, "output": 64},
    }


def test_an_engine_carries_about_its_estimate() -> None:
    setup = set_up(scenario_from_dict(small(1.0)))
    asked = MeanRequest(512, 64)
    estimate = answers_per_second(setup.pools[0], asked, tpot=0.05, prompts_too=True)
    apart = answers_per_second(setup.pools[0], asked, tpot=0.05, prompts_too=False)
    assert 0 < estimate < apart and estimate < prompts_per_second(setup.pools[0], asked)
    below, above = (outcome_of(simulate(scenario_from_dict(small(share * estimate)))) for share in (0.8, 1.25))
    assert below.meets(ttft=1.0, tpot=0.05)
    assert not above.meets(ttft=1.0, tpot=0.05)


def test_a_queue_that_grows_is_not_a_load_that_is_carried() -> None:
    outcome = outcome_of(simulate(scenario_from_dict(small(400.0, 3000))))
    assert outcome.growth > 0.2 and not outcome.meets(ttft=1e9, tpot=1e9)
    assert not replace(outcome, growth=0.0, ttft_p95=1.0, tpot_p95=0.02).meets(ttft=0.9, tpot=0.02)


class Simple(Contest):
    """Fleets that meet a limit up to a load of their own."""

    carries: dict[str, float]
    asked: int = 0

    def measure(self, candidate: Candidate, rate: float, limit: Limit) -> Outcome:
        self.asked += 1
        late = rate > self.carries[candidate.name] * (1.0 if limit.ttft > 1 else 0.5)
        return Outcome(rate, rate, 1.0, 0.1, 99.0 if late else 0.1, 0.01, 0.01, 0.0)


def test_the_best_fleet_is_found_and_hopeless_ones_are_left_out(tmp_path: Path) -> None:
    limits = [Limit(3.0, 0.02), Limit(0.5, 0.02)]
    contest = Simple(tmp_path / "none.yaml", (), limits, 256, Book("none"))
    contest.carries = {"a": 60.0, "b": 80.0, "c": 25.0, "d": 10.0}
    entered = [
        Candidate(name, {}, estimate) for name, estimate in (("d", 20.0), ("a", 100.0), ("b", 90.0), ("c", 28.0))
    ]
    contest.enter(entered, 10, lambda _: None)
    loose, tight = (contest.best[limit] for limit in limits)
    assert (loose.candidate.name, tight.candidate.name) == ("b", "b")
    assert 80 - 90 / 32 < loose.outcome.rate <= 80 and 40 - 90 / 32 < tight.outcome.rate <= 40
    assert contest.tried == 2, "c and d should carry far less than b does"


def test_gpus_are_split_so_that_neither_side_waits() -> None:
    one, other = Kind("p", (), 8, 10.0), Kind("d", (), 16, 40.0)
    pairs = splits(one, other, 64)
    assert pairs[0] == (4, 2) and all(8 * p + 16 * d <= 64 for p, d in pairs) and len(pairs) > 1


def test_outcomes_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.outcome.RUNS", tmp_path)
    scenario = scenario_from_dict(small(5.0, 60))
    first = Book("test").look_up(scenario)
    monkeypatch.setattr("studies.outcome.simulate", None)  # nobody may ask again
    assert Book("test").look_up(scenario) == first
