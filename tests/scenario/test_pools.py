"""Pools that serve different models, and pools that are chosen before their replicas, as scenarios name them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from steelyard import Result, scenario_from_dict, simulate
from steelyard.errors import UserError
from steelyard.sim.attempts import without_lost
from support.known import known

BIG, SMALL = "llama-3.1-8b", "qwen3-0.6b"
ENGINE = {"max_num_batched_tokens": 2048, "max_num_seqs": 32}


def stream(model: str | None, rate: float, name: str, requests: int = 60, prompt: int = 400) -> dict[str, Any]:
    """Requests with nothing random about them."""
    arrivals = {"kind": "constant", "rate": rate}
    own = {"name": name, "arrivals": arrivals, "requests": requests, "prompt": prompt, "output": 40}
    return own if model is None else own | {"model": model}


def pools(*models: Any, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for k, model in enumerate(models):
        found.append({"name": f"pool-{k}", "gpu": "h100", "replicas": 2} | more)
        if model is not None:
            found[-1]["model"] = model
    return found


def run(workload: Any, fleet: dict[str, Any], model: Any = BIG, **more: Any) -> Result:
    data = {"model": model, "fleet": fleet, "engine": ENGINE, "workload": workload, "cost": {"source": "analytic"}}
    return simulate(scenario_from_dict(data | more, "fleet.yaml"))


def of(result: Result, label: str) -> np.ndarray[Any, Any]:
    rows: np.ndarray[Any, Any] = result.requests["label"] == label
    return rows


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ["round-robin", "least-outstanding", "kv-aware"])
def test_two_models_side_by_side_are_two_fleets(router: str) -> None:
    """Pools of the big model stand on either side of the small one's; both are served as if alone, to the bit."""
    streams = [stream(None, 30, "long"), stream(SMALL, 50, "short")]
    both = run(streams, {"pools": pools(None, SMALL, BIG), "router": router})
    alone = [
        run(streams[0], {"pools": pools(None, None), "router": router}),
        run(streams[1], {"pools": pools(None), "router": router}, model=SMALL),
    ]
    for result, label, numbers in zip(alone, ("long", "short"), ([0, 1, 4, 5], [2, 3]), strict=True):
        rows = of(both, label)
        for name in ("first_token", "finish", "output"):
            np.testing.assert_array_equal(both.requests[name][rows], result.requests[name])
        np.testing.assert_array_equal(both.requests["replica"][rows], np.array(numbers)[result.requests["replica"]])
    assert both.summary.model == f"{BIG} + {SMALL}"
    assert [pool.model for pool in both.summary.pools] == [BIG, SMALL, BIG]
    assert list(both.summary.models) == [BIG, SMALL]
    for result, told in zip(alone, both.summary.models.values(), strict=True):
        assert told.requests == told.finished == 60
        assert told.ttft == result.summary.ttft and told.e2e == result.summary.e2e
    assert not alone[0].summary.models and alone[0].summary.pools[0].model is None


@pytest.mark.parametrize("transfer", [{}, {"layerwise": True, "first_token": "prefill"}])
def test_two_models_computed_here_and_answered_there(transfer: dict[str, Any]) -> None:
    """Each has NICs of its own, and keys and values of its own size that go across; so again both are as if alone."""
    sides = [{"role": role, "gpu": "h100", "tp": 4, "replicas": 2} for role in ("prefill", "decode")]
    mine = [side | {"name": f"big-{side['role']}"} for side in sides]
    other = [side | {"name": f"small-{side['role']}", "model": SMALL} for side in sides]
    streams = [stream(None, 30, "long"), stream(SMALL, 50, "short")]
    both = run(streams, {"pools": [mine[0], other[0], mine[1], other[1]], "transfer": transfer})
    alone = [
        run(streams[0], {"pools": mine, "transfer": transfer}),
        run(streams[1], {"pools": sides, "transfer": transfer}, model=SMALL),
    ]
    for result, label, numbers in zip(alone, ("long", "short"), ([0, 1], [2, 3]), strict=True):
        rows = of(both, label)
        for name in ("first_token", "finish"):
            np.testing.assert_allclose(both.requests[name][rows], result.requests[name], rtol=1e-12)
        assert set(both.requests["replica"][rows].tolist()) == set(numbers)
    carried = [result.summary.links["prefill_out"].bytes for result in (both, *alone)]
    inside = [result.summary.links["inside_nodes"].bytes for result in (both, *alone)]
    assert carried[0] + inside[0] == pytest.approx(sum(carried[1:]) + sum(inside[1:]))


def test_sessions_and_prefix_caches_stay_with_their_model() -> None:
    chat = stream(SMALL, 4, "chat") | {"session": {"turns": 3, "think": 0.1}}
    result = run([stream(None, 20, "long"), chat], {"pools": pools(None, SMALL), "router": "prefix-aware"})
    assert set(result.requests["replica"][of(result, "chat")].tolist()) == {2, 3}
    cached = result.requests["cached"]
    assert cached[of(result, "chat")].sum() > 0 and cached[of(result, "long")].sum() == 0


def test_one_config_in_two_precisions_is_two_models() -> None:
    fast = {"config": BIG, "quantization": "fp8", "name": "fast"}
    result = run([stream(None, 10, "exact"), stream("fast", 10, "quick")], {"pools": pools(None, fast)})
    exact, quick = (result.requests["tpot"][of(result, name)].mean() for name in ("exact", "quick"))
    assert quick < 0.75 * exact
    assert list(result.summary.models) == [BIG, "fast"]


def test_lengths_are_those_of_the_model_asked_for() -> None:
    short = pools(SMALL, engine={"max_model_len": 1000})
    streams = [stream(None, 20, "long", prompt=990), stream(SMALL, 20, "short", prompt=990)]
    streams.append(stream(SMALL, 20, "too-long", prompt=1500))
    result = run(streams, {"pools": [*short, {"name": "big", "gpu": "h100"}]})
    rows = {name: of(result, name) for name in ("long", "short", "too-long")}
    assert set(result.requests["output"][rows["long"]].tolist()) == {40}
    assert set(result.requests["output"][rows["short"]].tolist()) == {10}
    assert set(result.requests["status"][rows["too-long"]].tolist()) == {"rejected"}
    assert set(result.requests["status"][~rows["too-long"]].tolist()) == {"finished"}


@pytest.mark.parametrize("router", ["round-robin", "least-outstanding", "kv-aware", "slo-aware"])
def test_whoever_wants_a_model_that_is_down_waits_for_it(router: str) -> None:
    fleet = {"pools": [*pools(None), *[each | {"name": "small", "replicas": 1} for each in pools(SMALL)]]}
    crash = {"at": 0.5, "crash": {"pool": "small", "restart_after": 2.0}}
    streams = [stream(None, 30, "long"), stream(SMALL, 30, "short")]
    slo = {"ttft": 1.0}
    result = run(streams, fleet | {"router": router}, dynamics=[crash], slo=slo)
    calm = run(streams, fleet | {"router": router}, slo=slo)
    assert set(result.requests["status"].tolist()) == {"finished"}
    long, short = of(result, "long"), of(result, "short")
    np.testing.assert_array_equal(result.requests["finish"][long], calm.requests["finish"][long])
    assert set(result.requests["replica"][short].tolist()) == {2}
    late = short & (result.requests["arrival"] > 0.5)
    assert (result.requests["first_token"][late] > 2.5).all()
    assert known(result.summary.dynamics).crashes == 1


def test_a_pool_grows_by_the_queue_of_its_own_model() -> None:
    """While the small model's only replica is down its requests wait, and the big one's pool must not care."""
    scale = {"min": 1, "max": 4, "by": "queue", "target": 4, "every": 0.5, "startup": 0.1}
    big = {"name": "big", "gpu": "h100", "replicas": 1, "autoscale": scale}
    small = {"name": "small", "gpu": "h100", "replicas": 1, "model": SMALL}
    crash = {"at": 0.2, "crash": {"pool": "small", "restart_after": 5.0}}
    result = run([stream(None, 1, "long", 8), stream(SMALL, 40, "short")], {"pools": [big, small]}, dynamics=[crash])
    counts = {pool.name: pool.replicas for pool in known(result.summary.dynamics).pools}
    assert max(count for _, count in counts["big"]) == 1
    assert set(result.requests["status"].tolist()) == {"finished"}


# -- pools ------------------------------------------------------------------------------------------------------------


def sent(result: Result, first: int) -> int:
    """Requests on replicas below ``first``."""
    return int((result.requests["replica"] < first).sum())


def test_pools_are_one_row_of_replicas_unless_a_router_chooses_among_them() -> None:
    uneven = [{"name": "many", "gpu": "h100", "replicas": 3}, {"name": "few", "gpu": "h100", "replicas": 1}]
    work = stream(None, 20, "all")
    assert sent(run(work, {"pools": uneven}), 3) == 45
    weighted = [each | {"weight": 1} for each in uneven]
    assert sent(run(work, {"pools": weighted, "pool_router": "weighted"}), 3) == 30
    shifted = [weighted[0] | {"weight": 5}, weighted[1]]
    assert sent(run(work, {"pools": shifted, "pool_router": "weighted"}), 3) == 50


def test_without_weights_a_pool_bears_what_its_gpus_do() -> None:
    """Two H200 of 4.8 TB/s against four A100 of 2.0: 120 requests that come at once are dealt out like 9.6 to 8.2."""
    fleet = {
        "pools": [{"name": "new", "gpu": "h200", "replicas": 2}, {"name": "old", "gpu": "a100-80gb", "replicas": 4}],
        "pool_router": "least-loaded",
    }
    burst = stream(None, 1, "all", 120) | {"arrivals": {"kind": "burst"}}
    result = run(burst, fleet)
    bandwidth = {"h200": 4.8e12, "a100-80gb": 2.039e12}
    new, old = 2 * bandwidth["h200"], 4 * bandwidth["a100-80gb"]
    assert sent(result, 2) == pytest.approx(120 * new / (new + old), abs=1)
    counts = np.bincount(result.requests["replica"])
    assert counts[:2].max() - counts[:2].min() <= 1 and counts[2:].max() - counts[2:].min() <= 1


def test_the_least_loaded_pool_follows_what_it_has_finished() -> None:
    """Equal weights, one GPU far slower: by turns half go there, by load far fewer."""
    unlike = [
        {"name": "new", "gpu": "h200", "weight": 1},
        {"name": "old", "gpu": "a100-80gb", "tp": 1, "weight": 1},
    ]
    work = stream(None, 25, "all", 200)
    by_turns = run(work, {"pools": unlike, "pool_router": "weighted"})
    by_load = run(work, {"pools": unlike, "pool_router": "least-loaded"})
    assert sent(by_turns, 1) == 100
    assert sent(by_load, 1) > 120
    assert known(by_load.summary.e2e.mean) < known(by_turns.summary.e2e.mean)


def test_prefill_and_decode_pools_are_chosen_too() -> None:
    fleet = {
        "pools": [
            {"name": "p1", "role": "prefill", "gpu": "h100", "weight": 3},
            {"name": "p2", "role": "prefill", "gpu": "h100", "weight": 1},
            {"name": "d1", "role": "decode", "gpu": "h100", "weight": 1},
            {"name": "d2", "role": "decode", "gpu": "h100", "weight": 1},
        ],
        "pool_router": "weighted",
    }
    result = run(stream(None, 10, "all"), fleet)
    assert set(result.requests["status"].tolist()) == {"finished"}
    assert sent(result, 1) == 45
    assert [len(without_lost(log)["index"]) for log in result.logs[2:]] == [30, 30]


def test_pools_are_chosen_within_a_model() -> None:
    weighted = [each | {"weight": weight} for each, weight in zip(pools(None, SMALL, SMALL), (9, 1, 3), strict=True)]
    result = run([stream(None, 10, "long"), stream(SMALL, 10, "short")], {"pools": weighted, "pool_router": "weighted"})
    counts = np.bincount(result.requests["replica"], minlength=6).reshape(3, 2).sum(axis=1)
    assert counts.tolist() == [60, 15, 45]


# -- mistakes ---------------------------------------------------------------------------------------------------------

ONE = {"gpu": "h100"}
MISTAKES: list[tuple[dict[str, Any], Any, str]] = [
    (
        {"pools": pools(None, SMALL)},
        stream("qwen3-0.6", 1, "a"),
        "fleet.yaml: workload.model: no pool serves qwen3-0.6; did you mean 'qwen3-0.6b'? (found 'qwen3-0.6')",
    ),
    (
        {"pools": pools(SMALL)},
        stream(None, 1, "a"),
        "fleet.yaml: workload.model: no pool serves llama-3.1-8b; ",
    ),
    (
        {"pools": pools(None, {"config": BIG, "dtype": "fp8"})},
        stream(None, 1, "a"),
        "fleet.yaml: fleet.pools[1].model.name: two different models are called llama-3.1-8b; give one another name",
    ),
    (
        {"pools": pools({"config": SMALL, "name": BIG})},
        stream(None, 1, "a"),
        "fleet.yaml: fleet.pools[0].model.name: two different models are called llama-3.1-8b",
    ),
    (
        {"pools": [ONE | {"role": "prefill"}, ONE | {"role": "decode", "model": SMALL}]},
        stream(None, 1, "a"),
        "fleet.yaml: fleet.pools[0].model: no decode pool serves llama-3.1-8b; give one",
    ),
    (
        {
            "pools": [
                ONE | {"role": "prefill"},
                ONE | {"role": "decode"},
                ONE | {"name": "d", "role": "decode", "model": SMALL},
            ]
        },
        stream(None, 1, "a"),
        "fleet.yaml: fleet.pools[2].model: no prefill pool serves qwen3-0.6b; give one",
    ),
    (
        {"pools": [ONE | {"role": "attention", "model": SMALL}, ONE | {"role": "ffn"}]},
        stream(None, 1, "a"),
        "fleet.yaml: fleet.pools[0].model: a pool of role attention serves the scenario's model",
    ),
    (
        {"pools": pools(None, "qwen3-0.7b")},
        stream(None, 1, "a"),
        "fleet.yaml: fleet.pools: pool-1.model: ",
    ),
    (
        {"pools": pools(None, None, weight=2)},
        stream(None, 1, "a"),
        "fleet.yaml: fleet.pools[0].weight: nothing asks for it; set fleet.pool_router, or leave it out",
    ),
    (
        {"pools": [*pools(None, weight=2), ONE], "pool_router": "weighted"},
        stream(None, 1, "a"),
        "fleet.yaml: fleet.pools[1].weight: missing; give every pool of role serve a weight, or none",
    ),
    (
        {"pools": pools(None, None), "pool_router": "heaviest"},
        stream(None, 1, "a"),
        "fleet.yaml: fleet.pool_router: not a choice; ",
    ),
]


@pytest.mark.parametrize(("fleet", "workload", "message"), MISTAKES)
def test_mistakes(fleet: dict[str, Any], workload: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        run(workload, fleet)
    assert str(caught.value).startswith(message)


def test_the_last_replica_of_a_model_must_come_back() -> None:
    crash = {"at": 1, "crash": {"pool": "pool-1"}}
    fleet = {"pools": pools(None, SMALL, replicas=1)}
    with pytest.raises(UserError, match="no replica of role serve would be left for good"):
        run([stream(None, 1, "a"), stream(SMALL, 1, "b")], fleet, dynamics=[crash])
    run([stream(None, 9, "a")], {"pools": pools(None, BIG, replicas=1)}, dynamics=[crash])
