"""What only some fleets have: said on the page and the terminal with the summary's own figures, or not at all."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.report.changes import MOST_FIGURES
from steelyard.report.loads import replica_loads
from steelyard.report.page import render_page
from steelyard.scenario import load_scenario, scenario_from_dict
from steelyard.sim import simulate
from steelyard.sim.plots.axis import TIME_BINS, TimeAxis
from steelyard.sim.plots.changes import MOST_EVENTS, _thinned, serving
from steelyard.sim.summary import DynamicsFigures, FirstUseFigures, Intervals, ServingFigures
from steelyard.words import byte_size, count, percent, seconds, significant
from support.known import known
from support.paths import EXAMPLES
from support.report_samples import make_result, no_steps
from support.report_text import HOSTILE, charts_of, printed, words

SECTIONS = ("changes", "models", "pools", "cache")
FAULTS = """dynamics=[{at: 2, crash: {pool: serve, replica: 0, restart_after: 3}},
 {at: 1, crash: {pool: serve, replica: 3}}, {at: 2.5, crash: {pool: serve, replica: 0}},
 {at: 3, until: 4, slow: {pool: serve, replica: 1, factor: 1.5}}]"""
TWO_MODELS = {
    "model": "llama-3.1-8b",
    "fleet": {
        "pools": [
            {"name": "big", "gpu": "h100", "replicas": 2},
            {"name": "small", "gpu": "h100", "model": "qwen3-0.6b"},
        ]
    },
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 40},
        "requests": 60,
        "mix": [
            {"share": 3, "prompt": 400, "output": 40},
            {"share": 1, "prompt": 300, "output": 20, "model": "qwen3-0.6b"},
        ],
    },
}


@cache
def example(name: str, *overrides: str) -> Any:
    return simulate(load_scenario(EXAMPLES / f"{name}.yaml", list(overrides)))


def faults() -> Any:
    return example("faults", "workload.requests=300", FAULTS)


def rows(result: Any, section: str) -> str:
    """The text of one section of the page; empty if it is not there."""
    page = render_page(result, [])
    before, found, after = page.partition(f'<section id="{section}">')
    assert bool(found) == (f'href="#{section}"' in before)
    own = after.partition("</h2>")[2].partition('<section id="')[0].rpartition("</section>")[0]
    return words(own)


def both(result: Any, section: str, *texts: str) -> None:
    """Each text stands in the page's section and on the terminal, which stays within 80 columns."""
    page, terminal = rows(result, section), printed(result)
    assert max(map(len, terminal.splitlines())) <= 80
    assert "…" not in terminal
    for text in texts:
        assert text in page, text
        assert text in " ".join(terminal.split()), text


def test_crashes_and_slow_gpus() -> None:
    result = faults()
    told = known(result.summary.dynamics)
    (pool,) = told.pools
    assert told.crashes == 2 and told.retries > 0 and [n for _, n in pool.replicas] == [4, 3, 2, 3]
    both(
        result,
        "changes",
        f"2 crashes (of 3: the others found no engine there); {count(told.retried_requests)} requests started over",
        f"{count(told.retries)} times in all",
        f"serve 4 2 4 3 3 {significant(pool.gpu_hours_up)}",
        "crash serve 0 2.00 s 5.00 s",
        "crash serve 3 1.00 s the end",
        "slow GPU, 1.5 × the time serve 1 3.00 s 4.00 s",
    )
    drawn = charts_of(render_page(result, []))["serving-0"]
    marks = {each.get("name"): each for each in drawn["marks"]}
    steps = marks["serving"]
    assert tuple(zip(steps["x"], steps["y"], strict=True))[:-1] == pool.replicas
    assert steps["x"][-1] == pytest.approx(drawn["x"]["high"], rel=1e-5), "the last count is held"
    assert steps["y"][-1] == pool.replicas[-1][1]
    assert marks["crash"]["x"] == [2, 1, 2.5] and marks["restart"]["x"] == [5]
    assert (marks["slow GPUs"]["x"], marks["slow GPUs"]["ends"]) == ([3], [4]) and "narrow links" not in marks


def test_a_pool_that_grows_and_shrinks() -> None:
    result = example(
        "autoscale", "workload.requests=900", *(f"fleet.autoscale.{k}" for k in ("startup=4", "target=2", "cooldown=5"))
    )
    (pool,) = known(result.summary.dynamics).pools
    served = [n for _, n in pool.replicas]
    assert len(served) > 2 and max(served) > 2
    levels = (served[0], min(served), max(served), served[-1], len(served) - 1)
    both(result, "changes", f"serve {' '.join(map(str, levels))} {significant(pool.gpu_hours_up)}")
    assert "crash" not in rows(result, "changes").lower() and "crash" not in printed(result).lower()
    (drawn,) = charts_of(render_page(result, []))["serving-0"]["marks"]
    assert drawn["y"][:-1] == served


def test_links_and_what_makes_them_narrow() -> None:
    narrow = "dynamics=[{at: 1, until: 99, link: {pool: prefill, factor: 0.1}}]"
    result = example("pdd", "workload.requests=60", narrow)
    use = result.summary.links["prefill_out"]
    assert use.bytes > 0
    shares = " ".join(percent(share) for share in (use.mean_use, use.peak_use, use.busy))
    both(result, "pools", f"prefill out {byte_size(use.bytes)} {shares}")
    both(result, "changes", "narrow NIC, 0.1 × the bandwidth prefill all 1.00 s 99.0 s", "decode 2 2 2 2 0")
    charts = charts_of(render_page(result, []))
    (spans,) = (each for each in charts["serving-0"]["marks"] if each.get("name") == "narrow links")
    assert spans["x"] == [1], "only what happens in the run"
    assert spans["ends"] == [pytest.approx(result.requests["finish"].max(), rel=1e-5)]
    sending = {each["name"]: each["y"] for each in charts["links"]["marks"] if each["kind"] == "line"}
    assert np.mean(sending["prefill out"]) == pytest.approx(use.busy, rel=0.02), "over time as in the summary"


def test_hits_by_tier() -> None:
    result = example("tiered-kv", "workload.requests=60", "engine.num_gpu_blocks=1500")
    tiers = result.summary.prefix_cache.by_tier
    assert tiers["host"].hit_tokens > 0 and known(tiers["remote"].bytes_written) > 0
    for kind, tier in tiers.items():
        figures = [count(tier.hit_tokens), percent(tier.hit_rate)]
        if kind != "gpu":
            figures += [byte_size(tier.bytes_read), byte_size(tier.bytes_written)]
            figures += [percent(tier.read_use), percent(tier.write_use)]
        both(result, "cache", f"{'GPU' if kind == 'gpu' else kind} {' '.join(figures)}")
    page = rows(result, "cache")
    assert f"computed: found nowhere {percent(1 - result.summary.prefix_cache.hit_rate)}" in page
    assert f"host {count(tiers['host'].blocks_stored)} (holds {count(tiers['host'].blocks)} per engine)" in page
    assert "by tier" not in words(render_page(result, []))


def test_sides_that_wait_for_each_other() -> None:
    result = example("afd", "workload.requests=12")
    sides = {pool.name: percent(pool.stalled) for pool in result.summary.pools}
    assert all(known(pool.stalled) > 0 for pool in result.summary.pools)
    said = f"attention {sides['attention']}, ffn {sides['ffn']} of the time of decode steps"
    assert f"Stalled {said}" in " ".join(printed(result).split())
    page = rows(result, "pools")
    for pool in result.summary.pools:
        assert f"8 h800 {pool.replicas} {percent(pool.busy)} {sides[pool.name]}" in page
    assert "Stalled: the share of the time of decode steps" in page and "bubble" not in page


def test_stages_with_nothing_to_do() -> None:
    result = example("pipeline", "workload.requests=12")
    (pool,) = result.summary.pools
    assert known(pool.pipeline_bubble) > 0
    bubble = percent(pool.pipeline_bubble)
    assert f"Bubble serve {bubble} of the time of stages" in " ".join(printed(result).split())
    assert f"serve 32 h100 2 {percent(pool.busy)} {bubble}" in rows(result, "pools")
    assert "Stalled" not in printed(result)


def test_each_of_several_models() -> None:
    result = simulate(scenario_from_dict(TWO_MODELS))
    for name, model in result.summary.models.items():
        spreads = {"ttft": model.ttft, "tpot": model.tpot, "e2e": model.e2e}
        latencies = {metric: [seconds(spread.p50), seconds(spread.p95)] for metric, spread in spreads.items()}
        figures = [count(model.requests), *latencies["ttft"], *latencies["tpot"]]
        both(result, "models", f"{name} {' '.join(figures)} {significant(model.output_tokens_per_s)}")
        assert " ".join(latencies["e2e"]) in rows(result, "models")
    assert "small (serve) qwen3-0.6b 1 h100" in rows(result, "pools")
    peaks = [pool.kv.peak_use for pool in result.summary.pools]
    series = {each.get("name"): each["y"] for each in charts_of(render_page(result, []))["kv"]["marks"]}
    assert max(series["fullest replica"]) == pytest.approx(max(peaks), rel=0.01), "of each replica's own blocks"
    assert min(series["mean"]) >= 0


def test_kernels_compiled_on_first_use() -> None:
    result = make_result(20)
    assert "first use" not in words(render_page(result, [])) + printed(result)
    result.summary = replace(result.summary, compiled_on_first_use=FirstUseFigures(kernels=3, seconds=4.5))
    both(result, "load", "3 kernels compiled on first use; steps waited 4.50 s for that")
    assert "Compiled on first use kernels 3 seconds 4.50 s" in words(render_page(result, []))


@pytest.mark.parametrize("few", [40, 0])
def test_a_fleet_without_any_of_it_shows_none(few: int) -> None:
    result = example("chat-sessions", f"workload.requests={few}") if few else no_steps(make_result(9))
    assert all(not rows(result, section) for section in SECTIONS)
    assert "serving-0" not in charts_of(render_page(result, []))
    for word in ("Serving", "What happens", "Hits in", "Stalled", "Bubble", "Crashes", "First uses", "Links", "Model "):
        assert word not in printed(result), word


def test_names_cannot_break_out_of_any_of_it() -> None:
    result = simulate(scenario_from_dict(TWO_MODELS))
    serving = ServingFigures(name=HOSTILE, replicas=((0.0, 1), (0.5, 2)), gpu_hours_up=1.0)
    result.summary = replace(
        result.summary,
        models={HOSTILE: next(iter(result.summary.models.values()))},
        pools=tuple(replace(pool, name=HOSTILE, model=HOSTILE, stalled=0.5) for pool in result.summary.pools),
        dynamics=DynamicsFigures(crashes=0, retried_requests=0, retries=0, gpu_hours_up=1.0, pools=(serving,)),
    )
    page = render_page(result, [])
    assert "<script>alert" not in page and words(page).count("alert(1)") >= 7
    assert "[/red]" in printed(_named(result, "[red]pool[/red]")), "nor is it taken for a style of the terminal"


def _named(result: Any, name: str) -> Any:
    pools = (replace(result.summary.pools[0], name=name), *result.summary.pools[1:])
    result.summary = replace(result.summary, pools=pools)
    return result


def test_any_number_of_pools_and_events_stays_small() -> None:
    result = faults()
    crowd = tuple(ServingFigures(name=f"pool {i}", replicas=((0.0, 1), (1.0, 2)), gpu_hours_up=1.0) for i in range(30))
    many = load_scenario(EXAMPLES / "faults.yaml").dynamics * 100
    scenario = result.scenario.model_copy(update={"dynamics": many})
    told = replace(known(result.summary.dynamics), pools=crowd)
    large = replace(result, scenario=scenario, summary=replace(result.summary, dynamics=told))
    text = words(render_page(large, []))
    assert f"The first {MOST_FIGURES} of 30 pools that change." in text
    assert f"The first {MOST_EVENTS} of 200 events." in text
    assert "and 192 more in the scenario" in printed(large)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9)), min_size=1, max_size=60), st.integers(1, 6))
def test_thinning_keeps_what_a_figure_shows(points: list[tuple[float, int]], bins: int) -> None:
    points, axis = sorted(points), TimeAxis(0.0, 100.0, bins)
    kept = _thinned(points, axis)
    assert len(kept) <= max(4 * bins, 1)
    assert all(a <= b for a, b in pairwise(kept)) and set(kept) <= set(points)
    width = 100.0 / bins
    for i in range(bins):
        whole, shown = ([n for at, n in found if min(int(at / width), bins - 1) == i] for found in (points, kept))
        assert (not whole and not shown) or (min(whole), max(whole), whole[-1]) == (min(shown), max(shown), shown[-1])


def test_a_long_run_is_thinned() -> None:
    result = faults()
    (pool,) = known(result.summary.dynamics).pools
    axis = TimeAxis(0.0, 1e4)
    often = replace(pool, replicas=tuple((float(i), i % 5) for i in range(10_000)))
    told = replace(known(result.summary.dynamics), pools=(often,))
    long = replace(result, summary=replace(result.summary, dynamics=told))
    (drawn,) = serving(long, axis)
    assert max(len(each.x) for each in drawn.marks) <= 4 * TIME_BINS + 1


def test_pools_that_hand_requests_over_have_rows_and_figures_of_their_own() -> None:
    result = example("pdd", "workload.requests=120")
    table = result.requests
    assert set(table["decode_replica"]) <= {2, 3} and set(table["replica"]) <= {0, 1}
    loads = replica_loads(result)
    assert loads.requests[:2].sum() == loads.requests[2:].sum() == 120
    assert loads.output_tokens[:2].sum() == 0 and loads.output_tokens[2:].sum() == table["output"].sum()
    page = render_page(result, [])
    assert [f'id="fig-{name}-{i}"' in page for name in ("queue", "batch", "kv") for i in (0, 1, 2)] == [
        True,
        True,
        False,
    ] * 3
    charts = charts_of(page)
    prefill, decode, whole = (running(charts[name]) for name in ("queue-0", "queue-1", "queue"))
    assert prefill + decode == pytest.approx(whole, rel=1e-3, abs=1e-3)
    assert "prefill" in rows(result, "replicas") and "decode" in rows(result, "replicas")
    assert "queue-0" not in charts_of(render_page(make_result(20, 4), []))


def test_a_page_with_all_figures_of_many_pools_is_small_enough_to_mail() -> None:
    """Figures have as many points for any length of run: these are all that a page can have."""
    pools = [{"name": f"pool {i}", "gpu": "h100"} for i in range(8)]
    workload = {"arrivals": {"kind": "poisson", "rate": 80}, "requests": 800, "prompt": 900, "output": 60}
    scenario = {
        "model": "llama-3.1-8b",
        "fleet": {"pools": pools},
        "workload": workload,
        "cost": {"source": "analytic"},
    }
    result = simulate(scenario_from_dict(scenario))
    bounds = {f"{name}.{level}": (0.01, 0.02) for name in ("ttft", "tpot", "itl", "e2e") for level in ("p50", "p99")}
    page = render_page(replace(result, summary=replace(result.summary, intervals=Intervals(0.9, bounds))), [])
    assert len(charts_of(page)) > 30 and "The first 6 of 8 pools." in words(page)
    assert len(page.encode()) < 1_500_000


def running(chart: dict[str, Any]) -> Any:
    """The mean of running requests over time."""
    (found,) = (each["y"] for each in chart["marks"] if each.get("name") == "running")
    return np.array(found)


def test_where_step_time_goes() -> None:
    result = example("moe-ep", "workload.requests=30")
    (pool,) = result.summary.pools
    shares = known(pool.step_time).to_dict()
    assert sum(shares.values()) == pytest.approx(1.0) and min(shares.values()) >= 0.0
    assert shares["experts"] > 0.1 and shares["communication"] > 0.0
    assert f"routed experts {percent(shares['experts'])}" in words(render_page(result, []))
    assert " ".join(percent(share) for share in shares.values()) in " ".join(printed(result).split())


def test_acceptance_length_is_what_the_workload_accepts() -> None:
    result = example("speculative", "workload.requests=60")
    (pool,) = result.summary.pools
    assert known(pool.acceptance_length) == pytest.approx(1 + 0.8 + 0.6 + 0.4, rel=0.03)
    assert f"Acceptance length {pool.acceptance_length:.2f}" in " ".join(printed(result).split())
    assert "Acceptance length" in words(render_page(result, []))
    assert "Acceptance" not in printed(example("chat-sessions", "workload.requests=20"))


def test_intervals_are_a_table_and_lists_of_numbers_are_short() -> None:
    result = make_result(30)
    bounds = {"ttft.p50": (0.0123456789012345, 0.0234567890123456), "throughput.requests_per_s": (1.0, 2.0)}
    result.summary = replace(result.summary, intervals=Intervals(0.9, bounds))
    page = words(render_page(result, []))
    assert "12.3 ms – 23.5 ms" in page and "0.0123456" not in page


@pytest.mark.parametrize(
    ("gpu", "source", "installed", "said"),
    [
        ("h100", "auto", False, True),
        ("h100", "auto", True, False),
        ("h100", "analytic", False, False),
        ("h200", "auto", False, False),
        ("mi300x", "auto", False, False),
    ],
)
def test_nvidias_tables_are_named_where_they_would_know(
    gpu: str, source: str, installed: bool, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = example("chat-sessions", "workload.requests=20", f"fleet.gpu={gpu}", f"cost.source={source}")
    if installed:  # but of no use for this run
        monkeypatch.setattr("steelyard.report.verdict.package_folder", lambda: Path("tables"))
    else:
        monkeypatch.setattr("steelyard.report.verdict.package_folder", lambda: None)
    for text in (" ".join(printed(result).split()), words(render_page(result, []))):
        assert ("steelyard[silicon]" in text) is said
