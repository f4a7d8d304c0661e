"""Times carried from a sibling: what memory and arithmetic bound moves with them, and nothing is called measured."""

from __future__ import annotations

import numpy as np
import pytest

from steelyard import UserError, scenario_from_dict, simulate
from steelyard.cost.source import TRANSFERRED, Decodes
from steelyard.cost.transferred import SIBLINGS, Transferred
from steelyard.hardware import find_gpu, topology_of
from steelyard.model import AttentionOperator, AttentionShape, Collective, Gemm, GroupedGemm
from steelyard.scenario import CostSpec
from steelyard.sim.sources import measured_sources, shipped, transferred
from support.known import known

H200 = find_gpu("h200")
MATRIX = Gemm("any", k=4096, n=14336, weight_bytes=2.0, compute="bf16")
SHAPE = AttentionShape(32, 8, 128, 128)
ATTENTION = AttentionOperator("attention", "gqa", SHAPE, SHAPE, 2 * 8 * 128, None, "bf16")


def source(gpu: str) -> Transferred:
    return known(transferred(gpu))


def test_a_gpu_carried_to_itself_keeps_its_times() -> None:
    profile = known(shipped("h200"))
    same = Transferred(H200, profile, H200)
    rows = np.arange(0.0, 3000.0, 7)
    assert known(same.rows(MATRIX, rows)).seconds == pytest.approx(known(profile.rows(MATRIX, rows)).seconds)
    mine, theirs = (known(each.decode_attention(ATTENTION, 2.0)).curve(32) for each in (same, profile))
    assert mine.kv == theirs.kv
    assert mine.seconds == pytest.approx(theirs.seconds)
    our, other = (known(each.prefill_attention(ATTENTION, 2.0)) for each in (same, profile))
    decodes = Decodes(40, 40_000, 3000)
    assert our.seconds([(1000, 24)]) == pytest.approx(other.seconds([(1000, 24)]))
    assert our.together([(1000, 24)], decodes) == pytest.approx(other.together([(1000, 24)], decodes))


def test_less_bandwidth_slows_by_what_memory_takes_longer_and_nothing_else() -> None:
    profile, h100 = known(shipped("h200")), source("h100")
    longer = 1 / find_gpu("h100").memory_bandwidth - 1 / H200.memory_bandwidth  # seconds of a byte
    few, many = np.array([1.0, 16.0]), np.array([4096.0, 8192.0])
    there, here = (known(each.rows(MATRIX, few)).seconds for each in (profile, h100))
    moved = 2.0 * (MATRIX.k * MATRIX.n + few * (MATRIX.k + MATRIX.n))
    assert here - there == pytest.approx(moved * longer)
    there, here = (known(each.rows(MATRIX, many)).seconds for each in (profile, h100))
    assert here == pytest.approx(there)
    curves = [known(each.decode_attention(ATTENTION, 2.0)).curve(64) for each in (profile, h100)]
    there, here = (each.at(np.array([200_000.0]))[0] for each in curves)
    assert here - there == pytest.approx(200_000 * 2 * 8 * 128 * 2.0 * longer)


def test_less_arithmetic_slows_prompts() -> None:
    profile, h20 = known(shipped("h200")), source("h20")
    pairs = 4096 * 4097 / 2
    longer = 1 / find_gpu("h20").peak("bf16") - 1 / H200.peak("bf16")
    there, here = (known(each.prefill_attention(ATTENTION, 2.0)).seconds([(4096, 0)]) for each in (profile, h20))
    assert here - there == pytest.approx(4 * 32 * 128 * pairs * longer)


def test_a_window_bounds_what_is_seen() -> None:
    narrow = AttentionOperator("attention", "gqa", SHAPE, SHAPE, 2 * 8 * 128, 1024, "bf16")
    profile, h100 = known(shipped("h200")), source("h100")
    there, here = (known(each.prefill_attention(narrow, 2.0)) for each in (profile, h100))
    one, four = (
        known(here.together([(16, 0)], Decodes(8, cached, cached // 8)))
        - known(there.together([(16, 0)], Decodes(8, cached, cached // 8)))
        for cached in (8 * 1024, 8 * 4096)
    )
    assert one == pytest.approx(four) and one > 0


def test_nothing_is_called_measured_and_links_are_not_carried() -> None:
    h800 = source("h800")
    assert set(known(h800.rows(MATRIX, np.array([1.0, 8.0]))).provenance.tolist()) == {TRANSFERRED}
    assert known(h800.decode_attention(ATTENTION, 2.0)).curve(1).provenance == TRANSFERRED
    assert known(h800.prefill_attention(ATTENTION, 2.0)).provenance == TRANSFERRED
    assert h800.rows(Collective("allreduce", 4096, ranks=4), np.array([8.0])) is None
    assert h800.rows(Gemm("any", 4096, 4096, 0.5625, "bf16"), np.array([8.0])) is None  # nor has the profile this


def test_no_work_takes_no_time() -> None:
    h100 = source("h100")
    assert known(h100.rows(MATRIX, np.array([0.0]))).seconds.tolist() == [0.0]
    inside = GroupedGemm("experts_down", 768, 2048, 128, 8, weight_bytes=2.0, compute="bf16")  # of the whole layer
    assert known(h100.rows(inside, np.array([64.0]))).seconds.tolist() == [0.0]


def test_siblings_use_it_before_the_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.sim.sources.find_silicon", lambda *_: None)
    for gpu in SIBLINGS:
        names = [each.name for each in measured_sources(CostSpec(), find_gpu(gpu), topology_of(find_gpu(gpu)))]
        assert names == ["profile of NVIDIA H200, transferred"]
    with pytest.raises(UserError, match="transferred is for h100, h800, h20, gh200"):
        measured_sources(CostSpec(source="transferred"), H200, topology_of(H200))
    assert measured_sources(CostSpec(source="analytic"), find_gpu("h100"), topology_of(find_gpu("h100"))) == ()


def test_a_run_says_so() -> None:
    asked = {"arrivals": {"kind": "poisson", "rate": 8}, "requests": 20, "prompt": 600, "output": 20}
    run = {"model": "llama-3.1-8b", "fleet": {"gpu": "h100"}, "workload": asked, "cost": {"source": "transferred"}}
    summary = simulate(scenario_from_dict(run)).summary
    assert summary.provenance.transferred > 0.9
    assert summary.provenance.measured == 0
    assert "transferred" in " ".join(summary.sources.values())
