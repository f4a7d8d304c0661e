"""Figures of examples are there and come out the same; an engine carries about its estimate."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from steelyard import load_posttrain, load_scenario, scenario_from_dict, simulate
from steelyard.posttrain.run import posttrain
from steelyard.search.estimates import MeanRequest, answers_per_second, prompts_per_second
from steelyard.search.outcome import observe
from steelyard.sim.setup import set_up
from studies import tail
from studies.figures import IMAGES, PAGE, draw, names
from studies.gallery import GALLERY
from studies.page import PAGE as STUDIES_PAGE
from studies.page import images
from studies.svg import Bars, Curve, Panel, figure
from support.paths import EXAMPLES

TEMPLATES = sorted(path for path in (EXAMPLES / "studies").glob("*.yaml") if path != tail.TEMPLATE)


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


def test_wide_engines_shorten_the_rollout_of_the_tail_study() -> None:
    small = ["steps=1", "trajectories.prompts=16"]
    runs = {
        way: tail.rollouts_of(posttrain(load_posttrain(tail.TEMPLATE, [*tail.WAYS[way], *small])))
        for way in ("no change", "at 10.0% left", "when it is predicted to pay")
    }
    plain, late, own = runs.values()
    assert own.seconds[0] < late.seconds[0] < plain.seconds[0] == max(plain.ends)
    assert (plain.left, late.left) == ([], [12]) and 1.0 < late.switch[0] < 1.2
    text = STUDIES_PAGE.read_text(encoding="utf-8")
    assert "<!-- tail -->" in text and all(f"| {way} |" in text for way in tail.WAYS)
    assert (images() / "tail.svg").exists()


def small(rate: float, requests: int = 1500) -> dict[str, object]:
    return {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h100"},
        "slo": {"ttft_p95": 1.0, "tpot_p95": 0.05},
        "engine": {"max_num_batched_tokens": 2048, "enable_prefix_caching": False},
        "workload": {"arrivals": {"kind": "poisson", "rate": rate}, "requests": requests, "prompt": 512, "output": 64},
    }


def test_an_engine_carries_about_its_estimate() -> None:
    setup = set_up(scenario_from_dict(small(1.0)))
    asked = MeanRequest(512, 64)
    estimate = answers_per_second(setup.pools[0], asked, tpot=0.05, prompts_too=True)
    apart = answers_per_second(setup.pools[0], asked, tpot=0.05, prompts_too=False)
    assert 0 < estimate < apart and estimate < prompts_per_second(setup.pools[0], asked)
    below, above = (observe(setup, scenario_from_dict(small(share * estimate))) for share in (0.8, 1.25))
    slo = setup.scenario.slo
    assert below.meets(slo)
    assert not above.meets(slo)
