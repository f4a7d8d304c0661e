"""Attention and FFN pools in scenarios: both sides add up to the whole, ways by hand, whole runs, refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from steelyard import Result, load_scenario, scenario_from_dict, simulate
from steelyard.cost import Roofline, compile_cost, plan_memory, work_of
from steelyard.cost.afd import AfdCost, AfdUnit
from steelyard.cost.afd_sides import (
    Side,
    attention_part,
    attention_work,
    ffn_operators,
    ffn_work,
    plan_ffn_memory,
)
from steelyard.cost.afd_unit import compile_unit, link_between
from steelyard.cost.collectives import multicast, reached
from steelyard.cost.host import NO_HOST
from steelyard.cost.scaled import FAMILIES
from steelyard.errors import UserError
from steelyard.hardware import GpuLink, find_gpu, topology_of
from steelyard.model import (
    DenseFfn,
    Gemm,
    MoeFfn,
    kv_bytes_per_token,
    load_model,
    parameters,
    weight_bytes,
)
from steelyard.scenario import EngineSpec, TopologySpec
from steelyard.sim import set_up
from support.known import known
from support.paths import EXAMPLES

H800 = find_gpu("h800")
ROOFLINE = (Roofline(H800),)
EAGER = EngineSpec(max_num_batched_tokens=256, max_num_seqs=80, enforce_eager=True)
MODELS = ["deepseek-v2-lite", "gemma-3-4b", "llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b"]
NVLINK = topology_of(H800).peer


def side(instances: int = 1, tp: int = 1, redundant: int = 0) -> Side:
    return Side(H800, instances, tp, (Roofline(H800),), redundant)


def compiled(
    name: str, attention: Side, ffn: Side, many: int = 1, link: GpuLink = NVLINK, engine: EngineSpec = EAGER
) -> AfdUnit:
    model = load_model(name)
    return compile_unit(model, attention, ffn, engine, link=link, micro_batches=many, terms=NO_HOST).unit


def free(unit: AfdUnit) -> AfdCost:
    return AfdCost(replace(unit, send=lambda *_: 0.0, back=lambda *_: 0.0))


# -- the sides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_free_ways_one_micro_batch_and_one_gpu_each_is_co_located(name: str) -> None:
    whole = compile_cost(load_model(name), 1, EAGER, *ROOFLINE, terms=NO_HOST)
    apart = free(compiled(name, side(), side()))
    for n, kv in [(1, 100), (7, 7000), (64, 64 * 4096), (64, 64 * 4097)]:
        (a, b, _), (mine, slope, _) = whole.decode_line(n, kv, kv // n), apart.decode_line(n, kv, kv // n)
        assert mine + slope * kv == pytest.approx(a + b * kv, rel=1e-12)
        chunks = [(50, 0), (20, 1000)]
        expected = whole.mixed(n, kv, kv // n, chunks).gpu
        assert apart.mixed(n, kv, kv // n, chunks).gpu == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [*MODELS, "deepseek-v3"])
def test_weights_and_work_of_both_sides_add_up_to_the_whole(name: str) -> None:
    model = load_model(name)
    near = weight_bytes(attention_part(model))
    big = replace(side(), gpu=replace(H800, memory_bytes=1 << 45))
    far = plan_ffn_memory(model, big, 0.9, 256).weights
    assert near + far == pytest.approx(weight_bytes(model), abs=len(model.layers))
    whole, mine, others = (
        work_of(model, H800, 1, "auto"),
        attention_work(model, side(), "auto"),
        ffn_work(model, side()),
    )
    assert mine.per_token + others.per_token == pytest.approx(whole.per_token, rel=1e-12)
    assert mine.weight_bytes + others.weight_bytes == pytest.approx(whole.weight_bytes, rel=1e-12)
    assert (mine.per_row, mine.attention) == (whole.per_row, whole.attention)
    assert others.experts == whole.experts and not any(size for size, _ in mine.experts)


def test_the_attention_side_has_the_router_and_the_ffn_side_all_experts() -> None:
    """By hand: Qwen3-30B-A3B has 48 layers of 128 experts, 3 matrices of 2048 x 768 each, and a 2048 x 128 router."""
    model = load_model("qwen3-30b-a3b")
    plan = plan_ffn_memory(model, side(8), 0.9, 256)
    assert plan.weights == 48 * 128 // 8 * 3 * 2048 * 768 * 2
    rest = parameters(model).total - 48 * 128 * 3 * 2048 * 768
    assert weight_bytes(attention_part(model)) == pytest.approx(rest * 2, rel=1e-3)  # the vocabulary is padded
    memory = plan_memory(attention_part(model), H800, 1, EAGER)
    assert memory.weights == weight_bytes(attention_part(model)) and memory.blocks > 0


def test_shared_experts_lie_on_every_ffn_gpu_and_dense_ones_are_split() -> None:
    model = load_model("deepseek-v2-lite")
    shared = sum(3 * model.hidden * layer.ffn.shared_intermediate * 2 * layer.count for layer in _moe(model))
    routed = sum(3 * model.hidden * _width(layer) * 2 * layer.count for layer in _moe(model))
    (dense,) = (layer.ffn for layer in model.layers if isinstance(layer.ffn, DenseFfn))
    first = 3 * model.hidden * dense.intermediate * 2
    assert plan_ffn_memory(model, side(1, 4), 0.9, 1).weights == routed // 4 + shared + first // 4
    assert plan_ffn_memory(model, side(4, 1), 0.9, 1).weights == routed // 4 + shared + first


def _moe(model: Any) -> list[Any]:
    return [layer for layer in model.layers if isinstance(layer.ffn, MoeFfn)]


def _width(layer: Any) -> int:
    return int(layer.ffn.experts * layer.ffn.expert_intermediate)


def test_tokens_are_dealt_out_to_dense_ffn_instances() -> None:
    """Four instances with 64 tokens each take as long as one with 64; those of a group gather and reduce besides."""
    one, four = compiled("llama-3.1-8b", side(), side(1)), compiled("llama-3.1-8b", side(), side(4))
    assert four.layers[0].ffn(253) == four.layers[0].ffn(256) == one.layers[0].ffn(64)
    split = compiled("llama-3.1-8b", side(), side(1, 4))
    assert one.layers[0].ffn(64) / 4 < split.layers[0].ffn(64) < one.layers[0].ffn(64)


def test_experts_see_the_tokens_of_all_attention_instances() -> None:
    """Eight ranks hold an eighth of the weights each; the slowest is no faster than the mean, and 1 token is on few."""
    one, eight = compiled("qwen3-30b-a3b", side(4), side(1)), compiled("qwen3-30b-a3b", side(4), side(8))
    assert len(eight.layers) == 1
    for rows in (64, 256, 1024):
        assert one.layers[0].ffn(rows) / 8 < eight.layers[0].ffn(rows) < one.layers[0].ffn(rows)
    copies = compiled("qwen3-30b-a3b", side(4), side(8, redundant=8))
    assert copies.layers[0].ffn(1024) <= eight.layers[0].ffn(1024) * 1.1


# -- the ways between -------------------------------------------------------------------------------------------------


def test_ways_carry_a_copy_to_each_gpu_with_an_expert_over_the_links_of_the_smaller_side() -> None:
    model, link = load_model("qwen3-30b-a3b"), topology_of(H800).nic
    unit = compiled("qwen3-30b-a3b", side(2), side(8), link=link)
    sent = 300 * reached(8, 8) * model.hidden * 2
    assert unit.send(300, 150) == pytest.approx(float(multicast(link, 1, 1, np.array([sent / 2]))[0]))
    assert (
        unit.send(300, 300) == unit.back(300, 300) == pytest.approx(float(multicast(link, 1, 1, np.array([sent]))[0]))
    )
    few = compiled("qwen3-30b-a3b", side(8), side(2), link=link)  # 2 links for all tokens, or one for a full instance
    half = 300 * reached(2, 8) * model.hidden * 2 / 2
    assert few.send(300, 38) == few.send(300, 150) == pytest.approx(float(multicast(link, 1, 1, np.array([half]))[0]))
    dense = compiled("llama-3.1-8b", side(2), side(8), link=link)
    alone = float(multicast(link, 1, 1, np.array([300 * 4096 * 2 / 2]))[0])
    assert dense.send(300, 150) == pytest.approx(alone) and dense.send(0, 0) == 0.0


def test_eight_bits_halve_the_way_there_and_not_the_way_back() -> None:
    """By hand: 2048 values in a byte each and 16 scales of 4 bytes, instead of 2048 values of 2 bytes."""
    model, link = load_model("qwen3-30b-a3b"), topology_of(H800).nic
    plain = compiled("qwen3-30b-a3b", side(2), side(8), link=link)
    short = compile_unit(
        model, side(2), side(8), EAGER, link=link, micro_batches=1, terms=NO_HOST, sent_in_fp8=True
    ).unit
    sent = 300 * reached(8, 8) * (2048 + 16 * 4) / 2
    assert short.send(300, 150) == pytest.approx(float(multicast(link, 1, 1, np.array([sent]))[0]))
    assert short.back(300, 150) == plain.back(300, 150) == plain.send(300, 150)


def test_sliced_shared_experts_take_less_memory_and_an_exchange() -> None:
    """Each GPU of a group of four has a quarter, and computes it for the tokens of all four."""
    model = load_model("deepseek-v2-lite")
    shared = sum(3 * model.hidden * layer.ffn.shared_intermediate * 2 * layer.count for layer in _moe(model))
    copied, sliced = side(8), replace(side(8), shared_ranks=4)
    saved = plan_ffn_memory(model, copied, 0.9, 1).weights - plan_ffn_memory(model, sliced, 0.9, 1).weights
    assert saved == shared * 3 // 4
    layer = next(each for each in model.layers if isinstance(each.ffn, MoeFfn))
    found = {operator.name: (operator, split) for operator, split in ffn_operators(model, layer, sliced)}
    assert {split for operator, split in found.values() if operator.name in ("shared_gather", "shared_down")} == {2}
    assert found["shared_add"][1] == 8 and found["shared_scatter"][1] == 2
    of_all = {operator.name: operator for operator, _ in ffn_operators(model, layer, copied)}
    slice_of, whole = found["shared_down"][0], of_all["shared_down"]
    assert isinstance(whole, Gemm) and slice_of == replace(whole, k=whole.k // 4)
    assert ffn_work(model, sliced).per_token == pytest.approx(ffn_work(model, copied).per_token)  # the same flops


def test_slices_stay_inside_a_node() -> None:
    """Twelve FFN GPUs at eight to a node: groups of four, none of which lies in two nodes."""
    written = fleet({"replicas": 8}, {"replicas": 12}, afd={"shared_experts": "sliced"})
    setup = set_up(scenario_from_dict({"model": "deepseek-v2-lite", "fleet": written, "workload": WORK}))
    model, ffn = load_model("deepseek-v2-lite"), next(each for each in setup.pools if each.pool.role == "ffn")
    groups = replace(side(12), shared_ranks=4)
    assert ffn.prepared.memory.weights == plan_ffn_memory(model, groups, 0.92, 1).weights


def test_a_unit_in_one_node_uses_its_links_and_a_larger_one_the_network() -> None:
    h800, h20 = topology_of(H800), topology_of(find_gpu("h20"), TopologySpec(nic=25e9))
    assert link_between(h800, h800, 8) == h800.peer
    assert link_between(h800, h800, 9) == h800.nic
    assert link_between(h800, h20, 2) == h20.nic
    shared = topology_of(H800, TopologySpec(oversubscription=4))
    assert link_between(shared, shared, 16).rated == h800.nic.rated / 4


# -- as an engine asks ------------------------------------------------------------------------------------------------


def test_graphs_say_how_a_units_steps_are_launched() -> None:
    terms = replace(NO_HOST, eager=3.0, experts=3.0, pieces=2.0, sample=1.0)
    model, engine = load_model("llama-3.1-8b"), EngineSpec(max_num_seqs=64, max_num_batched_tokens=512)
    unit = compile_unit(model, side(2), side(), engine, link=NVLINK, micro_batches=2, terms=terms).unit
    cost = AfdCost(unit)
    assert cost.decode_host(100)[1] == 1.0
    assert cost.mixed(4, 400, 100, [(200, 0)]).launch == 32 * 2.0 + 1.0  # halves of 100 tokens: a captured size
    assert cost.mixed(4, 400, 100, [(500, 0)]).launch == 32 * 3.0 + 1.0
    eager = compile_unit(model, side(), side(), EAGER, link=NVLINK, micro_batches=2, terms=terms).unit
    assert AfdCost(eager).decode_host(10)[1] == 32 * 3.0 + 1.0


def test_two_micro_batches_are_faster_where_both_sides_have_work() -> None:
    """Long contexts make attention about as slow as the FFN, whose matrices 256 and 512 tokens both fill."""
    engine = EngineSpec(max_num_batched_tokens=2048, max_num_seqs=1024, enforce_eager=True)
    step = []
    for many in (1, 2):
        a, b, _ = AfdCost(compiled("llama-3.1-8b", side(), side(), many, engine=engine)).decode_line(
            512, 512 * 600, 600
        )
        step.append(a + b * 512 * 600)
    assert 0.5 * step[0] < step[1] < 0.8 * step[0]


# -- whole runs -------------------------------------------------------------------------------------------------------

WORK = {
    "arrivals": {"kind": "poisson", "rate": 12},
    "requests": 80,
    "prompt": {"kind": "uniform", "min": 20, "max": 900},
    "output": {"kind": "uniform", "min": 1, "max": 80},
}


def fleet(attention: dict[str, Any], ffn: dict[str, Any], *more: dict[str, Any], **rest: Any) -> dict[str, Any]:
    sides = [{"role": "attention", "gpu": "h800", **attention}, {"role": "ffn", "gpu": "h800", **ffn}]
    return {"pools": [*more, *sides], **rest}


def run(fleet: dict[str, Any], model: str = "llama-3.1-8b", plain: bool = False, **rest: Any) -> Result:
    data = {"model": model, "fleet": fleet, "workload": WORK, "seed": 3, **rest}
    return simulate(scenario_from_dict(data), host=NO_HOST, plain=plain)


def test_a_lone_request_takes_its_co_located_steps_and_the_ways() -> None:
    """One GPU of each in a node, one micro-batch: 32 layers, each with two ways besides."""
    lone = {"arrivals": {"kind": "burst"}, "requests": 1, "prompt": 100, "output": 5}
    rest: dict[str, Any] = {"workload": lone, "engine": {"enforce_eager": True}, "cost": {"source": "analytic"}}
    whole, apart = run({"gpu": "h800"}, **rest), run(fleet({}, {}, afd={"micro_batches": 1}), **rest)
    size = np.array([100.0, *[1.0] * 4]) * 4096 * 2
    ways = 32 * 2 * multicast(NVLINK, 1, 1, size)
    took = [np.diff(result.steps["end"], prepend=0.0) for result in (whole, apart)]
    assert took[1] - took[0] == pytest.approx(ways, rel=1e-9)


def test_factors_move_both_sides_and_the_ways() -> None:
    """What a run's uncertainty is found by: everything twice as slow but the host makes a run's steps so."""
    wanted = {"model": "llama-3.1-8b", "fleet": fleet({"replicas": 2}, {"replicas": 2}), "workload": WORK}
    (usual, _), (slow, _) = (
        set_up(scenario_from_dict(wanted), NO_HOST, factors).pools for factors in (None, dict.fromkeys(FAMILIES, 2.0))
    )
    assert slow.unit is not None and usual.unit is not None
    for batch in ((40, 4000, 100, [(64, 0)]), (0, 0, 0, [(500, 100)])):
        assert slow.unit.mixed(*batch).gpu == pytest.approx(2 * usual.unit.mixed(*batch).gpu, rel=1e-12)
    assert "collective" in usual.cost.families


@cache
def both(plain: bool = False) -> Result:
    return run(fleet({"replicas": 4}, {"replicas": 4}, afd={"units": 2, "micro_batches": 3}), "qwen3-30b-a3b", plain)


def test_a_unit_is_one_engine_with_the_room_of_its_attention_instances() -> None:
    result = both()
    setups = set_up(result.scenario).pools
    attention, ffn = setups
    assert (attention.ranks, attention.gpus, ffn.ranks, ffn.gpus) == (2, 4, 0, 4)
    assert attention.limits.blocks == 2 * attention.memory.blocks
    assert (attention.limits.max_num_seqs, attention.limits.max_num_batched_tokens) == (512, 16384)
    assert attention.limits.long_prefill_token_threshold == 8192
    assert set(result.requests["status"]) == {"finished"} and set(result.requests["replica"]) == {0, 1}
    summary = result.summary
    assert summary.gpus == 8 and summary.replicas == 2
    assert summary.kv.blocks_per_replica == attention.limits.blocks
    near, far = summary.pools
    assert (near.role, far.role, near.replicas, far.replicas) == ("attention", "ffn", 2, 0)
    assert far.kv.peak_use == 0.0 < near.kv.peak_use < 1.0
    assert near.busy == far.busy and near.steps == far.steps == summary.steps
    assert 0.0 < known(near.stalled) < 1.0 and 0.0 < known(far.stalled) < 1.0
    assert sum(far.provenance.to_dict().values()) == pytest.approx(1.0) == sum(near.provenance.to_dict().values())
    assert "experts_down" in summary.sources and "qkv_proj" in summary.sources


def test_short_cuts_change_nothing() -> None:
    for fast, slow in zip(both().logs, both(plain=True).logs, strict=True):
        assert np.array_equal(np.array(fast.ends), np.array(slow.ends))


def test_use_is_what_the_model_needs_over_all_gpus() -> None:
    """Arithmetic of a run by hand: each token passes each matrix once, whichever GPU has it."""
    pools = both().summary.pools
    result, model = both(), load_model("qwen3-30b-a3b")
    tokens = float((result.steps["n_decode"] + result.steps["prefill_tokens"]).sum())
    experts = 48 * 8 * 3 * 2048 * 768
    room = result.summary.duration_s * 4 * H800.peak("bf16")
    assert pools[1].mfu == pytest.approx(2 * experts * tokens / room, rel=1e-9)
    active = parameters(model).active_without_embedding - experts - 151936 * 2048
    assert pools[0].mfu > 2 * active * tokens / room * 0.99


def test_prompts_computed_elsewhere_go_to_the_units_attention_gpus() -> None:
    prefill = {"role": "prefill", "gpu": "h800", "replicas": 2}
    for first in ("decode", "prefill"):
        both = fleet({"replicas": 8}, {"replicas": 4}, prefill, transfer={"first_token": first}, afd={"units": 2})
        result = run(both)
        assert set(result.requests["status"]) == {"finished"}
        assert np.isfinite(result.requests["tpot"][result.requests["output"] > 1]).all()
        table = result.requests
        assert (table["arrival"] < table["first_token"]).all() and (table["first_token"] <= table["finish"]).all()
        answered = table["output"] > (1 if first == "prefill" else 0)
        carried = result.summary.links["decode_in"].bytes + result.summary.links["inside_nodes"].bytes
        per_token = kv_bytes_per_token(load_model("llama-3.1-8b"))
        assert carried == pytest.approx(float(table["prompt"][answered].sum()) * per_token, rel=0.02)
        prefills, attention, ffn = result.summary.pools
        assert (prefills.replicas, attention.replicas, ffn.replicas) == (2, 2, 0)
        assert ffn.gpus == 4 and result.summary.gpus == 14


@pytest.mark.parametrize("name", ["afd", "pdd-afd"])
def test_examples_run(name: str) -> None:
    result = simulate(load_scenario(EXAMPLES / f"{name}.yaml", ["workload.requests=200"]))
    assert result.summary.outcomes.finished == 200


# -- refusals ---------------------------------------------------------------------------------------------------------

REFUSALS = [
    (
        {"pools": [{"role": "attention", "gpu": "h800"}]},
        "fleet.pools: one attention pool goes with one ffn pool; found 1 and 0",
    ),
    (
        fleet({}, {}, {"role": "ffn", "name": "other", "gpu": "h20"}),
        "fleet.pools: one attention pool goes with one ffn pool; found 1 and 2",
    ),
    (
        fleet({}, {}, {"role": "decode", "gpu": "h800"}, {"role": "prefill", "gpu": "h800"}),
        "fleet.pools: attention and ffn pools take the place of decode pools; give one or the other",
    ),
    (fleet({}, {}, {"role": "serve", "gpu": "h800"}), "fleet.pools: pools that serve stand alone"),
    (
        fleet({"replicas": 4}, {"replicas": 3}, afd={"units": 2}),
        "fleet.pools[1].replicas: 3 replicas cannot be cut into 2 units; use a multiple (afd.units)",
    ),
    (
        fleet({"replicas": 4, "dp": 2}, {}),
        "fleet.pools[0].dp: a pool of role attention has replicas and tp only; leave it out",
    ),
    (
        {"pools": [{"gpu": "h800"}], "afd": {"units": 2}},
        "fleet.afd: there is no attention and no ffn pool that it could be about",
    ),
    (
        fleet({"replicas": 8}, {"replicas": 2}),
        "fleet.pools: ffn: the FFN weights of qwen3-235b-a22b do not fit on 2 x NVIDIA H800 SXM 80GB of a unit: ",
    ),
    (
        fleet({"replicas": 8}, {"replicas": 32, "tp": 8}),
        "fleet.pools: ffn: qwen3-235b-a22b has 128 experts, which cannot be divided over 256 FFN GPUs of a unit",
    ),
    (
        fleet({"replicas": 8}, {"replicas": 16, "redundant_experts": 3}),
        "fleet.pools: ffn: redundant_experts: 128 experts and 3 copies cannot be divided evenly over 16 FFN GPUs",
    ),
    (fleet({"tp": 5}, {"replicas": 8}), "fleet.pools: attention.tp: 5 does not fit qwen3-235b-a22b: 64 attention"),
]


@pytest.mark.parametrize(("wanted", "message"), REFUSALS)
def test_what_cannot_work_is_refused(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        set_up(scenario_from_dict({"model": "qwen3-235b-a22b", "fleet": wanted, "workload": WORK}))
    assert message in str(caught.value)


def test_drafts_are_refused() -> None:
    data = {"model": "llama-3.1-8b", "fleet": fleet({}, {}), "workload": WORK}
    engine = {"num_speculative_tokens": 2, "acceptance": [1]}
    with pytest.raises(UserError, match="drafts are not simulated where attention and FFN are apart"):
        set_up(scenario_from_dict({**data, "engine": engine}))
