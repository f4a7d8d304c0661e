"""Results as they show themselves in notebooks, and the notebooks of the examples, run as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from steelyard import Result, find_fleets, posttrain_from_dict, scenario_from_dict, simulate, sweep
from steelyard.posttrain import PosttrainResult, posttrain
from steelyard.scenario.checking import checked
from steelyard.scenario.search import SearchScenario
from support.paths import EXAMPLES
from support.report_samples import make_result, no_steps
from support.report_text import HOSTILE, read, words
from support.sizing import SMALL

NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
LOOP: dict[str, Any] = {
    "model": "qwen3-14b",
    "name": "small loop",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "mode": "asynchronous",
    "rollout": [{"tp": 2, "replicas": 2}],
    "training": {"tp": 4, "dp": 1, "micro_batch_tokens": 16384},
    "steps": 2,
}


def shown(result: Any) -> str:
    html: str = result._repr_html_()
    outline = read(html)
    assert outline.scripts == 0 and not outline.links and "class=" not in html.split("<svg")[0]
    assert len(html) < 150_000
    return words(html)


def test_a_run_shows_its_verdict_and_charts(tmp_path: Path) -> None:
    slo = {"ttft_p95": {"limit": 0.5, "value": 0.081, "met": True}}
    text = shown(make_result(120, 4, name=f"quick {HOSTILE}", slo=slo))
    for part in ("quick <script>", "Meets its limit.", "Served", "TTFT p95", "Time to first token", "Throughput"):
        assert part in text, part
    result = simulate(scenario_from_dict({**SMALL, "workload": {**SMALL["workload"], "requests": 20}}))
    result.save(tmp_path / "run")
    loaded = Result.load(tmp_path / "run")
    assert shown(loaded) == shown(result)
    assert loaded.plot.kv().svg() == result.plot.kv().svg()
    assert not loaded.plot.itl().shown, "a folder does not hold gaps"


def test_a_run_with_little_to_show() -> None:
    assert "No request finished" in shown(no_steps(make_result(9)))
    assert "<Result with requests>" in Result.of(requests={})._repr_html_().replace("&lt;", "<").replace("&gt;", ">")


def test_a_post_training_run_shows_its_verdict_and_charts(tmp_path: Path) -> None:
    result = posttrain(posttrain_from_dict(LOOP))
    text = shown(result)
    for part in ("small loop", "A step takes", "The mean step, stage after stage", "GPUs that roll out"):
        assert part in text, part
    result.save(tmp_path / "run")
    loaded = PosttrainResult.load(tmp_path / "run")
    assert "A step takes" in shown(loaded) and "GPUs that roll out" not in shown(loaded)
    assert loaded.plot.steps().csv() == result.plot.steps().csv()


def test_searches_and_sweeps_show_what_they_found(tmp_path: Path) -> None:
    said = {key: SMALL[key] for key in ("name", "model", "workload", "slo", "cost")}
    said["search"] = {"gpus": 1, "seconds": 1, "requests": 60, "serve": {"gpu": ["h100", "a100"]}}
    found = find_fleets(checked(SearchScenario, said, lambda _: "small"), workers=1)
    text = shown(found)
    best = found.levels[0].best
    assert best and f"{best.architecture}, {best.name}: " in text and "Requests/s by price" in text
    file = tmp_path / "s.json"
    file.write_text(json.dumps({**SMALL, "workload": {**SMALL["workload"], "requests": 30}}))
    grid = sweep(file, {"fleet.replicas": [1, 2], "workload.arrivals.rate": [4, 8.5]})
    assert "best of 4 points" in shown(grid)
    frame = grid.to_pandas()
    assert frame["workload.arrivals.rate"].tolist() == [4, 8.5, 4, 8.5] and (frame["ttft_p95"] > 0).all()
    assert grid.to_polars()["fleet.replicas"].to_list() == grid.to_arrow()["fleet.replicas"].to_pylist() == [1, 1, 2, 2]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_of_the_examples_run(notebook: Path, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = nbformat.read(notebook, as_version=4)
    assert not any(cell.get("outputs") for cell in cells.cells), "outputs are not kept"
    nbclient.NotebookClient(cells, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    found = [output for cell in cells.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [each for each in found if each.output_type == "error"]
    drawn = [each for each in found if each.output_type == "execute_result"]
    pictures = [each for each in drawn if "image/svg+xml" in each.data or "text/html" in each.data]
    assert len(pictures) >= 4
    assert not re.search(r"\bNaN\b", "".join(str(each.data) for each in pictures))


def test_there_are_three_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"size-a-fleet", "compare-architectures", "plan-rl"}
