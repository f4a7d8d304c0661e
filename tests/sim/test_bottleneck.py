"""What binds is named rightly: more of it helps, and more than the other settings would."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any

import pytest

from steelyard import scenario_from_dict, simulate
from steelyard.cost import HostTerms
from steelyard.cost.scaled import FAMILIES
from steelyard.report.verdict import bottleneck_line
from support.known import known

Written = dict[str, Any]


def overloaded(rate: float, requests: int, prompt: int, output: int, **changes: Any) -> Written:
    asked = {"arrivals": {"kind": "poisson", "rate": rate}, "requests": requests, "prompt": prompt, "output": output}
    written = {"model": "llama-3.1-8b", "fleet": {"gpu": "h100"}, "engine": {}, "workload": asked}
    return {**written, "cost": {"source": "analytic"}, **changes}


def apart(prefills: int, decodes: int, nic: str = "400Gb", **decode_engine: Any) -> Written:
    pools = [
        {"role": "prefill", "gpu": "h100", "replicas": prefills},
        {"role": "decode", "gpu": "h100", "replicas": decodes, "engine": decode_engine},
    ]
    return {"pools": pools, "router": "least-outstanding", "topology": {"gpus_per_node": 1, "nic": nic}}


SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
CASES: dict[str, tuple[Written, str, str]] = {  # a scenario, what binds, and at which pool
    "seats": (overloaded(40, 400, 200, 300, engine={"max_num_seqs": 16}), "seats", "serve"),
    "blocks": (overloaded(40, 400, 200, 300, engine={"num_gpu_blocks": 600}), "blocks", "serve"),
    "tokens": (
        overloaded(
            40,
            300,
            2000,
            4,
            engine={"max_num_batched_tokens": 256, "max_num_seqs": 128, "cudagraph_capture_sizes": SIZES},
        ),
        "tokens",
        "serve",
    ),
    "arithmetic": (overloaded(40, 300, 4000, 2), "gpu compute", "serve"),
    "bandwidth": (
        overloaded(60, 600, 3000, 200, engine={"max_num_seqs": 96}, model="qwen3-0.6b"),
        "gpu memory",
        "serve",
    ),
    "host": (
        overloaded(3000, 5000, 50, 100, engine={"max_num_seqs": 2048, "enforce_eager": True}, model="qwen3-0.6b"),
        "host",
        "serve",
    ),
    "communication": (
        overloaded(20, 100, 3000, 4, fleet={"gpu": "l40s", "tp": 8}, model="llama-3.1-70b"),
        "communication",
        "serve",
    ),
    "link": (overloaded(30, 200, 3000, 20, fleet=apart(2, 2, "5Gb")), "link", ""),
    "prefill pool": (overloaded(40, 250, 4000, 20, fleet=apart(1, 3)), "gpu compute", "prefill"),
    "decode pool": (overloaded(40, 300, 200, 300, fleet=apart(3, 1, max_num_seqs=16)), "seats", "decode"),
}


def changed(written: Written, **engine: Any) -> Written:
    """With other settings, those of a pool that has some of its own included."""
    copy = deepcopy(written)
    copy["engine"].update(engine)
    for pool in copy["fleet"].get("pools", ()):
        own = pool.get("engine", {})
        own.update({key: value for key, value in engine.items() if key in own})
    return copy


def twice_the(what: str, written: Written) -> Written:
    """The same with more of a setting."""
    pools = written["fleet"].get("pools", ({},))
    engine = {**written["engine"], **pools[-1].get("engine", {})}
    seats, tokens = engine.get("max_num_seqs", 256), engine.get("max_num_batched_tokens", 8192)
    if what == "seats":
        return changed(written, max_num_seqs=2 * seats, max_num_batched_tokens=max(tokens, 2 * seats))
    if what == "tokens":
        return changed(written, max_num_batched_tokens=2 * tokens)
    blocks = engine.get("num_gpu_blocks")
    return changed(written, num_gpu_blocks=2 * blocks) if blocks else changed(written, gpu_memory_utilization=0.97)


def seconds(written: Written, host: HostTerms | None = None, factors: Mapping[str, float] | None = None) -> float:
    return simulate(scenario_from_dict(written), host=host, factors=factors).summary.duration_s


@pytest.mark.parametrize("name", CASES)
def test_what_binds_is_named_and_more_of_it_helps_most(name: str) -> None:
    written, cause, pool = CASES[name]
    summary = simulate(scenario_from_dict(written)).summary
    found = known(summary.bottleneck)
    assert (found.cause, found.pool) == (cause, pool)
    assert summary.steady is None and found.waited > 0.5
    gains = {what: summary.duration_s / seconds(twice_the(what, written)) for what in ("seats", "tokens", "blocks")}
    half = {field: value / 2 for field, value in asdict(HostTerms()).items()}
    gains["host"] = summary.duration_s / seconds(written, host=replace(HostTerms(), **half))
    gains["gpu"] = summary.duration_s / seconds(written, factors=dict.fromkeys(FAMILIES, 0.5))
    settings = {what: gains[what] for what in ("seats", "tokens", "blocks")}
    if cause in settings:
        assert gains[cause] > 1.4 and gains[cause] == max(settings.values()), gains
        return
    if cause == "link":
        wide = deepcopy(written)
        wide["fleet"]["topology"]["nic"] = "400Gb"
        assert summary.duration_s / seconds(wide) > 2 * max(gains.values()), gains
        return
    if cause == "communication":
        gains[cause] = summary.duration_s / seconds(written, factors={"collective": 0.5})
        gains["gpu"] = summary.duration_s / seconds(written, factors=dict.fromkeys(set(FAMILIES) - {"collective"}, 0.5))
    assert gains[cause.split()[0]] == max(gains.values()) > 1.3, gains
    assert max(settings.values()) < 1.2, gains


@pytest.mark.parametrize("name", ["prefill pool", "decode pool"])
def test_more_of_the_pool_that_is_named_helps_more_than_more_of_the_other(name: str) -> None:
    written, _, pool = CASES[name]
    base, found = seconds(written), {}
    for i, role in enumerate(("prefill", "decode")):
        larger = deepcopy(written)
        larger["fleet"]["pools"][i]["replicas"] *= 2
        found[role] = base / seconds(larger)
    assert found[pool] > 1.4 and max(found, key=lambda role: found[role]) == pool, found


def test_nothing_binds_where_nobody_waits() -> None:
    summary = simulate(scenario_from_dict(overloaded(2, 100, 200, 50))).summary
    assert summary.bottleneck is None and bottleneck_line(summary) == ""


def test_what_binds_is_said_in_a_line() -> None:
    written, _, _ = CASES["seats"]
    line = bottleneck_line(simulate(scenario_from_dict(written)).summary)
    assert "16 seats (max_num_seqs) taken" in line and line.endswith(
        "Would help: raise engine.max_num_seqs, or add replicas."
    )
