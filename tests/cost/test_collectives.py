"""Collectives against published times, against physics, and from tables where there are some."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from steelyard.cost import Roofline
from steelyard.cost.collectives import Collectives, ExpertExchange, Kind, Mode, Step, multicast, reached
from steelyard.cost.silicon import Database, find_database
from steelyard.cost.silicon.collectives import MeasuredCollectives
from steelyard.cost.source import ANALYTIC, EXTRAPOLATED, INTERPOLATED, MEASURED, Estimate
from steelyard.hardware import GpuLink, find_gpu, gpu_names, topology_of
from steelyard.model import Collective, Layout, load_model, operators, send_operators
from steelyard.scenario.topology import TopologySpec
from steelyard.sim.prepared import prepare

KINDS: tuple[Kind, ...] = get_args(Kind)
MODES: tuple[Mode, ...] = get_args(Mode)
STEPS: tuple[Step, ...] = get_args(Step)
WITH_NVLINK = sorted(name for name in gpu_names() if find_gpu(name).nvlink_bandwidth)
SIZES = np.logspace(2, 9.5, 60)


def usual(gpu: str, **fields: Any) -> Collectives:
    return Collectives(topology_of(find_gpu(gpu), TopologySpec.model_validate(fields)))


def micros(found: Estimate) -> float:
    return float(found.seconds[0]) * 1e6


def at(size: float) -> Any:
    return np.array([float(size)])


# -- published times ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mebibytes", "microseconds"), [(8, 61), (16, 100), (32, 173)])
def test_nccl_over_four_h200_takes_what_was_measured(mebibytes: int, microseconds: float) -> None:
    for kind in ("nccl_allreduce", "allreduce"):  # vLLM leaves sums of 8 MiB and more to NCCL
        found = usual("h200").estimate(kind, 4, at(mebibytes << 20))
        assert micros(found) == pytest.approx(microseconds, rel=0.08)


@pytest.mark.parametrize(
    ("ranks", "dispatch", "combine"),
    [(8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360)],
)
def test_low_latency_all_to_alls_take_what_deepep_publishes(ranks: int, dispatch: float, combine: float) -> None:
    """128 tokens a rank on H800 with 400 Gb/s each, 7,168 values in 8 bits (and 56 scales) to 8 experts, back in 16."""
    for step, row, published in (("dispatch", 7168 + 4 * 56, dispatch), ("combine", 2 * 7168, combine)):
        found = usual("h800").exchange(ExpertExchange("low_latency", step, row, 8, 256), ranks, at(128))  # type: ignore[arg-type]
        assert micros(found) == pytest.approx(published, rel=0.12)


@pytest.mark.parametrize(
    ("gpu", "step", "row", "tokens", "microseconds", "within"),
    [
        # Kernels of DeepEP as SGLang 0.5.12 calls it on one node: 7,168 values to 8 of 256 experts, in 8 bits there.
        ("h200", "dispatch", 7168 + 4 * 56, 1, 11.9, 0.05),
        ("h200", "dispatch", 7168 + 4 * 56, 128, 35.1, 0.1),
        ("h200", "dispatch", 7168 + 4 * 56, 1024, 211.1, 0.1),
        ("h200", "combine", 2 * 7168, 128, 67.7, 0.15),
        ("h200", "combine", 2 * 7168, 1024, 481.0, 0.2),
        ("b200", "dispatch", 7168 + 4 * 56, 1024, 129.6, 0.2),
        ("b200", "combine", 2 * 7168, 1024, 189.3, 0.15),
    ],
)
def test_low_latency_kernels_inside_a_node_do_not_fill_its_links(
    gpu: str, step: Step, row: int, tokens: int, microseconds: float, within: float
) -> None:
    found = usual(gpu).exchange(ExpertExchange("low_latency", step, row, 8, 256), 8, at(tokens))
    assert micros(found) == pytest.approx(microseconds, rel=within)


def test_high_throughput_is_bound_by_the_multiprocessors_it_has() -> None:
    """vLLM's dispatch of 16-bit rows inside a node: 65,536 tokens take 14.7 ms on H200, and 21.3 on B200."""
    exchange = ExpertExchange("high_throughput", "dispatch", 2 * 7168, 8, 256)
    hopper, blackwell, older = (micros(usual(gpu).exchange(exchange, 8, at(65536))) for gpu in ("h200", "b200", "h800"))
    assert hopper == blackwell == pytest.approx(14729, rel=0.05)
    assert older == pytest.approx(hopper * 300 / 160, rel=0.03), "whose links are slower than that"


@pytest.mark.parametrize(("ranks", "logical"), [(32, 58), (64, 51)])
def test_high_throughput_all_to_alls_fill_the_network_as_deepep_publishes(ranks: int, logical: float) -> None:
    """4,096 tokens to at most four nodes each: GB/s with those for the own node, which do not use it."""
    nodes = ranks // 8
    row, tokens = 7168, 4096
    many = usual("h800").exchange(ExpertExchange("high_throughput", "dispatch", row, 4, 256), ranks, at(2 * tokens))
    few = usual("h800").exchange(ExpertExchange("high_throughput", "dispatch", row, 4, 256), ranks, at(tokens))
    rate = reached(nodes, 4) * tokens * row / float(many.seconds[0] - few.seconds[0])
    assert rate / 1e9 == pytest.approx(logical, rel=0.15)


@pytest.mark.parametrize(
    ("gpu", "ranks", "low", "high"),
    [
        ("a100-80", 8, 220e9, 245e9),
        ("h100", 8, 400e9, 490e9),
        ("h200", 4, 330e9, 380e9),
        ("h800", 8, 150e9, 200e9),
        ("b200", 8, 650e9, 850e9),
        ("rtx-pro-6000", 8, 15e9, 22e9),
        ("l40s", 2, 17e9, 21e9),
        ("h100", 16, 320e9, 400e9),
    ],
)
def test_bus_bandwidth_of_large_sums_is_what_nccl_tests_show(gpu: str, ranks: int, low: float, high: float) -> None:
    size = 4e9
    seconds = float(usual(gpu).seconds("nccl_allreduce", ranks, at(size))[0])
    assert low < 2 * (ranks - 1) / ranks * size / seconds < high


@pytest.mark.parametrize(
    ("kind", "kibibytes", "microseconds"),
    [
        *[("allreduce", 4, 4.5), ("allreduce", 256, 11.1), ("allreduce", 1024, 30.1), ("allreduce", 4096, 106.0)],
        *[("nccl_allreduce", 1024, 44.4), ("nccl_allreduce", 16384, 473.5), ("allreduce", 16384, 474.9)],
    ],
)
def test_pairs_with_peer_access_over_pcie_take_what_was_measured(
    kind: Kind, kibibytes: int, microseconds: float
) -> None:
    """Two RTX PRO 6000 by NVIDIA's tables: vLLM 0.24's kernels in a graph, which end at 8 MiB, and NCCL 2.29."""
    assert micros(usual("rtx-pro-6000", peer_access=True).estimate(kind, 2, at(kibibytes << 10))) == pytest.approx(
        microseconds, rel=0.1 if kibibytes != 4 else 0.15
    )


@pytest.mark.parametrize(
    ("kibibytes", "microseconds"), [(4, 19.6), (64, 22.3), (512, 55.5), (1024, 91.5), (4096, 295.9), (131072, 8778)]
)
def test_pairs_without_it_go_through_the_host(kibibytes: int, microseconds: float) -> None:
    """The same card and tables, vLLM 0.19. The default is the mean of that host and a quicker one."""
    found = usual("rtx-pro-6000")
    for kind in ("allreduce", "nccl_allreduce"):  # vLLM's kernels read the other GPU's memory, which they cannot here
        assert 0.8 < micros(found.estimate(kind, 2, at(kibibytes << 10))) / microseconds < 1.1


def test_small_sums_inside_a_node_are_the_engines_own() -> None:
    """vLLM's kernels beat NCCL's start by far, and end at 8 MiB; groups of odd sizes and over nodes have NCCL only."""
    h100 = usual("h100")
    small = at(64 << 10)
    for ranks in (2, 4, 8):
        assert h100.seconds("allreduce", ranks, small)[0] < 0.7 * h100.seconds("nccl_allreduce", ranks, small)[0]
    for ranks in (3, 5, 16):
        assert h100.seconds("allreduce", ranks, small) == h100.seconds("nccl_allreduce", ranks, small)
    below, above = at((8 << 20) - 16), at(8 << 20)
    assert h100.seconds("allreduce", 4, below)[0] < 0.9 * h100.seconds("allreduce", 4, above)[0]
    pcie = usual("l40s")
    assert pcie.seconds("allreduce", 2, small)[0] < pcie.seconds("nccl_allreduce", 2, small)[0]
    assert pcie.seconds("allreduce", 4, small) == pcie.seconds("nccl_allreduce", 4, small)


def test_an_engine_without_its_own_kernels_adds_up_with_nccl() -> None:
    """Decodes of two GPUs add up twice a layer, 256 kB each, which NCCL starts later."""
    model = load_model("llama-3.1-8b")
    times = {
        disabled: prepare(
            model, "h100", 2, {"disable_custom_all_reduce": disabled}, {"source": "analytic"}
        ).cost.decode_line(32, 32_000, 1000)[0]
        for disabled in (False, True)
    }
    found = usual("h100")
    later = [float(found.seconds(kind, 2, at(32 * 4096 * 2))[0]) for kind in ("allreduce", "nccl_allreduce")]
    assert times[True] - times[False] == pytest.approx(65 * (later[1] - later[0]), rel=0.05)  # embeddings once, too


# -- physics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", sorted(gpu_names()))
def test_one_rank_and_no_bytes_are_free(gpu: str) -> None:
    found = usual(gpu)
    for kind in KINDS:
        assert not found.seconds(kind, 1, SIZES).any()
        assert not found.seconds(kind, 4, np.zeros(2)).any()
    for mode in MODES:
        for step in STEPS:
            assert not found.exchange(ExpertExchange(mode, step, 4096, 8, 128), 1, SIZES).seconds.any()
            assert not found.exchange(ExpertExchange(mode, step, 4096, 8, 128), 8, np.zeros(2)).seconds.any()


inside = st.tuples(st.sampled_from([2, 4, 6, 8]), st.just(0), st.just(1))
anywhere = st.tuples(st.integers(1, 64), st.integers(0, 9), st.integers(1, 8))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(
    gpu=st.sampled_from(sorted(gpu_names())),
    group=inside | anywhere,
    per_node=st.sampled_from([8, 4, 1]),
    nvlink=st.floats(1e9, 1e12) | st.none(),
    nic=st.floats(1e8, 1e11),
    crowd=st.floats(1, 8),
)
@example(gpu="h800", group=(8, 0, 1), per_node=8, nvlink=None, nic=5e10, crowd=1.0)
def test_more_bytes_never_take_less_time(
    kind: Kind, gpu: str, group: tuple[int, int, int], per_node: int, nvlink: float | None, nic: float, crowd: float
) -> None:
    found = usual(gpu, gpus_per_node=per_node, nvlink=nvlink, nic=nic, oversubscription=crowd)
    seconds = found.seconds(kind, found.topology.span(*group), SIZES)
    assert np.isfinite(seconds).all() and (np.diff(seconds) >= -1e-15).all()
    assert (seconds > 0).all() == (group[0] > 1)


@settings(max_examples=40)
@given(
    gpu=st.sampled_from(sorted(gpu_names())),
    mode=st.sampled_from(MODES),
    step=st.sampled_from(STEPS),
    ranks=st.sampled_from([2, 4, 8, 16, 48]),
    top_k=st.integers(1, 10),
)
def test_more_tokens_and_more_choices_never_take_less_time(
    gpu: str, mode: Mode, step: Step, ranks: int, top_k: int
) -> None:
    tokens = np.array([1.0, 7, 64, 1000, 20_000])
    fewer, more = (
        usual(gpu).exchange(ExpertExchange(mode, step, 4096, k, 128), ranks, tokens).seconds for k in (top_k, top_k + 1)
    )
    assert (np.diff(fewer) > 0).all() and (more >= fewer).all()


@settings(max_examples=60)
@given(gpu=st.sampled_from(WITH_NVLINK), kind=st.sampled_from(KINDS), power=st.integers(0, 5), crowd=st.floats(1, 8))
def test_more_nodes_never_take_less_time(gpu: str, kind: Kind, power: int, crowd: float) -> None:
    """Whole nodes, twice as many; and the same ranks in one node or spread over two."""
    found = usual(gpu, oversubscription=crowd)
    node = found.topology.gpus_per_node
    few, many = (found.seconds(kind, node << doublings, SIZES) for doublings in (power, power + 1))
    assert (many >= few - 1e-15).all()
    spread = found.topology.span(8, first=node - 4)
    assert spread.nodes == 2
    assert (found.seconds(kind, spread, SIZES) >= found.seconds(kind, 8, SIZES)).all()


@pytest.mark.parametrize("gpu", sorted(gpu_names()))
def test_nothing_is_faster_than_its_links(gpu: str) -> None:
    found = usual(gpu)
    chip, size = find_gpu(gpu), 1e9
    for ranks, link in ((8, chip.peer_bandwidth), (2 * chip.gpus_per_node, 8 * chip.nic_bandwidth)):
        leaves = {"allgather": (ranks - 1) / ranks, "reducescatter": (ranks - 1) / ranks, "broadcast": 1.0}
        for kind, share in leaves.items():
            assert found.seconds(kind, ranks, at(size))[0] > share * size / max(link, chip.peer_bandwidth)  # type: ignore[arg-type]
        assert found.seconds("allreduce", ranks, at(size))[0] > size / max(link, chip.peer_bandwidth)
    pair = found.topology.span(2, stride=chip.gpus_per_node)
    assert found.seconds("send", pair, at(size))[0] > size / chip.nic_bandwidth
    assert found.seconds("send", 2, at(size))[0] > size / chip.peer_bandwidth


def test_groups_over_nodes_use_all_their_nics() -> None:
    found, size = usual("h100"), 4e9
    whole = float(found.seconds("allgather", 16, at(size))[0])
    assert 15 / 16 * size / 400e9 < whole < 1.3 * 15 / 16 * size / 400e9
    thin = found.topology.span(16, stride=8)
    assert thin.nodes == 16
    assert float(found.seconds("allgather", thin, at(size))[0]) > 7 * whole, "one GPU in each node: one NIC"


def test_every_way_between_nodes_is_waited_for() -> None:
    far = usual("h100", nic_latency=1e-3)
    for kind, ways in (("allgather", 3), ("reducescatter", 3), ("broadcast", 3), ("alltoall", 1), ("send", 1)):
        waited = far.seconds(kind, 32, at(64))[0] - usual("h100", nic_latency=0).seconds(kind, 32, at(64))[0]  # type: ignore[arg-type]
        assert waited == pytest.approx(ways * 1e-3, rel=1e-3)
    tree = usual("a100-80", nic_latency=1e-3).seconds("allreduce", 128, at(64))[0]
    assert tree == pytest.approx(2 * 2 * 4e-3, rel=0.01), "sixteen nodes: four levels up and down, not fifteen hops"


@pytest.mark.parametrize(("ranks", "share"), [(2, 0.82), (4, 0.90), (8, 0.95)])
def test_gathers_of_few_ranks_reach_less_than_sums(ranks: int, share: float) -> None:
    """Of bytes/s over each link, in rings, where the last step of a round counts more the fewer there are."""
    found, size = usual("a100-80"), at(4e9)
    summed = found.seconds("nccl_allreduce", ranks, size)[0] / 2
    for kind in ("allgather", "reducescatter"):
        assert summed / found.seconds(kind, ranks, size)[0] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("peer_access", [False, True])
def test_a_pair_sends_faster_one_way(peer_access: bool) -> None:
    found, size = usual("rtx-pro-6000", peer_access=peer_access), at(1e9)
    alone, both = (float(found.seconds(kind, 2, size)[0]) for kind in ("broadcast", "allgather"))
    assert 0.5 * both < alone < 0.6 / 0.5 * both and alone > 1e9 / 64e9
    crowd = float(found.seconds("broadcast", 4, size)[0])
    assert crowd > 1.5 * alone, "ranks in between receive and send at once"


def test_oversubscription_and_slow_nics_cost_only_groups_over_nodes() -> None:
    full, half = usual("h100"), usual("h100", oversubscription=8)
    rack = usual("h100", oversubscription=8, nodes_per_leaf=4)
    size = at(1e8)
    for kind in KINDS:
        assert full.seconds(kind, 8, size) == half.seconds(kind, 8, size)
        assert full.seconds(kind, 32, size)[0] * 1.5 < half.seconds(kind, 32, size)[0]
        assert full.seconds(kind, 32, size) == rack.seconds(kind, 32, size)
        assert half.seconds(kind, 64, size) == rack.seconds(kind, 64, size)


def test_every_sender_reaches_every_receiver() -> None:
    link = GpuLink("network", 50e9, 3e-6)
    size = np.array([0.0, 1e3, 1e8])
    one = multicast(link, 1, 1, size)
    assert one[0] == 0 and one[1] > link.latency and one[2] > 1e8 / link.rated
    assert multicast(link, 4, 2, size)[2] == pytest.approx(4 * one[2], rel=0.01), "a receiver takes what four send"
    assert multicast(link, 2, 4, size)[2] == multicast(link, 4, 2, size)[2], "a sender sends four times"


def test_the_naive_ways_to_experts_are_collectives() -> None:
    found, ranks, tokens = usual("h200"), 8, at(100)
    whole = at(ranks * 100 * 4096)

    def seconds(mode: Mode, step: Step) -> Any:
        return found.exchange(ExpertExchange(mode, step, 4096, 8, 128), ranks, tokens).seconds

    assert seconds("allgather_reducescatter", "dispatch") == found.seconds("allgather", ranks, whole)
    assert seconds("allgather_reducescatter", "combine") == found.seconds("reducescatter", ranks, whole)
    assert seconds("naive", "dispatch") == ranks * found.seconds("broadcast", ranks, whole / ranks)
    assert seconds("naive", "combine") == found.seconds("nccl_allreduce", ranks, whole)
    assert seconds("low_latency", "dispatch") < seconds("high_throughput", "dispatch")


def test_high_throughput_sends_a_token_once_to_a_node() -> None:
    """Over the network, not over NVLink; the low-latency kernels send each choice by itself."""
    found, tokens = usual("h100"), at(50_000)
    thrifty = found.exchange(ExpertExchange("high_throughput", "combine", 8192, 8, 256), 16, tokens).seconds[0]
    direct = found.exchange(ExpertExchange("low_latency", "combine", 8192, 8, 256), 16, tokens).seconds[0]
    assert direct > 3 * thrifty


@pytest.mark.parametrize(("places", "top_k", "expected"), [(1, 8, 1.0), (8, 1, 1.0), (2, 2, 1.5), (10**6, 3, 3.0)])
def test_places_a_token_goes_to(places: int, top_k: int, expected: float) -> None:
    assert reached(places, top_k) == pytest.approx(expected, rel=1e-5)


# -- in a step ----------------------------------------------------------------------------------------------------


def test_the_roofline_asks_for_operators_over_their_own_ranks() -> None:
    gpu, rows = find_gpu("h100"), np.array([0.0, 64.0])
    inside = topology_of(gpu)
    narrow = topology_of(gpu, TopologySpec(gpus_per_node=2))
    four = Collective("ffn_allreduce", 8192, ranks=4)
    near, far = (Roofline(gpu, topology).rows(four, rows).seconds for topology in (None, narrow))
    assert near[0] == far[0] == 0
    assert near[1] == Collectives(inside).seconds("allreduce", 4, at(64 * 8192))[0] < far[1]
    gather = Collective("ffn_allgather", 8192, kind="allgather", ranks=8)
    assert Roofline(gpu).rows(gather, rows).seconds[1] == Collectives(inside).seconds("allgather", 8, at(64 * 8192))[0]


def gathered(layout: Layout) -> Collective:
    """What gathers tokens before the experts of a layout."""
    model = load_model("qwen3-30b-a3b")
    found = [op for op in operators(model, model.layers[0], layout) if op.name == "dispatch"]
    assert isinstance(found[0], Collective)
    return found[0]


@pytest.mark.parametrize(
    ("layout", "seconds"),
    [
        # Sliced experts: a GPU gathers with those that have the same slice. Nodes of 8 H100, NVLink 360 and NIC 45 GB/s
        # of what they are rated; half of 64 MiB, or three quarters, goes round by NCCL's simple protocol.
        # A part of the last step is waited for.
        (Layout(tp=2, dp=2), 8.4e-6 + 3.4e-6 + (32 << 20) * (1.6 / 1.3) / 360e9),  # 0 and 2
        (
            Layout(tp=8, dp=2),
            8.4e-6 + 14.0e-6 + (32 << 20) * (1.6 / 1.3) / 45e9,
        ),  # ranks 0 and 8: the network, though but two
        (
            Layout(tp=4, dp=4),
            8.4e-6 + 2 * 3.4e-6 + 14.0e-6 + (48 << 20) * (1.2 / 1.1) / 90e9,
        ),  # 0, 4 | 8, 12: two NICs of each node
        (Layout(tp=8, dp=4), 8.4e-6 + 3 * 14.0e-6 + (48 << 20) * (1.2 / 1.1) / 45e9),  # 0 | 8 | 16 | 24
        # Whole experts: all 16 GPUs gather, in two nodes with 8 NICs each; with so many hops lines of 128 bytes win.
        (
            Layout(tp=8, dp=2, expert_parallel=True),
            14.0e-6 + 14 * 1.9e-6 + 4.0e-6 + (60 << 20) * (1.04 / 1.02) / (0.92 * 360e9),
        ),
    ],
)
def test_groups_with_others_in_between_cross_more_nodes(layout: Layout, seconds: float) -> None:
    operator, topology = gathered(layout), topology_of(find_gpu("h100"))
    span = topology.span(operator.ranks, stride=operator.stride)
    found = Collectives(topology).estimate("allgather", span, at(64 << 20)).seconds[0]
    assert found == pytest.approx(seconds, rel=1e-9)
    rows = at((64 << 20) / operator.bytes)
    assert Roofline(find_gpu("h100")).rows(operator, rows).seconds[0] == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("tp", "stage", "hop", "rate"),
    [(4, 0, 3.4e-6, 360e9), (4, 1, 14.0e-6, 45e9), (4, 2, 3.4e-6, 360e9), (8, 0, 14.0e-6, 45e9), (2, 2, 3.4e-6, 360e9)],
)
def test_stages_that_end_with_their_node_send_over_the_network(tp: int, stage: int, hop: float, rate: float) -> None:
    send = send_operators(load_model("llama-3.1-8b"), Layout(tp=tp, pp=4), stage)[0]
    assert isinstance(send, Collective) and send.kind == "send"
    rows = at(50_000)
    moved = 50_000 * send.bytes / rate
    assert Roofline(find_gpu("h100")).rows(send, rows).seconds[0] == pytest.approx(8.4e-6 + hop + moved, rel=1e-9)


def test_the_roofline_takes_tokens_to_their_experts() -> None:
    gpu, rows = find_gpu("h100"), np.array([0.0, 64.0])
    for name, step in (("dispatch", "dispatch"), ("combine", "combine")):
        for mode in ("high_throughput", "low_latency"):
            operator = Collective(name, 8192, "token", "alltoall", 16, mode, 8, 256)
            exchange = ExpertExchange(mode, step, 8192, 8, 256)  # type: ignore[arg-type]
            expected = Collectives(topology_of(gpu)).exchange(exchange, 16, rows).seconds
            assert (Roofline(gpu).rows(operator, rows).seconds == expected).all() and expected[1] > 0


# -- tables -------------------------------------------------------------------------------------------------------


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    path = folder / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def tabled(folder: Path, gpu: str = "h200", **fields: Any) -> Collectives:
    topology = topology_of(find_gpu(gpu), TopologySpec.model_validate(fields))
    return Collectives(topology, MeasuredCollectives(Database(folder, "vllm")))


def nccl_rows(operation: str, slope: float) -> list[dict[str, Any]]:
    table = {"op_name": operation, "nccl_dtype": "half", "num_gpus": 8}
    return [{**table, "message_size": size, "latency": 0.01 + slope * size} for size in (512, 1 << 20)]


def test_measured_collectives_are_preferred_and_say_so(tmp_path: Path) -> None:
    names = {"nccl_allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
    names["alltoall"] = "alltoall"
    slopes = {kind: 1e-7 * (i + 1) for i, kind in enumerate(names)}
    write(tmp_path, "comm/nccl/2.29.2/nccl_perf", [row for k in names for row in nccl_rows(names[k], slopes[k])])
    size = np.array([0.0, 1024, 4096, 2 << 20, 1 << 22])
    for kind, slope in slopes.items():
        found = tabled(tmp_path).estimate(kind, 8, size)  # type: ignore[arg-type]
        assert found.seconds[1:] == pytest.approx((0.01 + slope * size[1:] / 2) * 1e-3)
        assert found.seconds[0] == 0
        assert found.provenance[1:].tolist() == [MEASURED, INTERPOLATED, MEASURED, EXTRAPOLATED]
    for other in (
        tabled(tmp_path).estimate("allgather", 4, size),
        tabled(tmp_path).estimate("allgather", 16, size),
        tabled(tmp_path).estimate("broadcast", 8, size),
        tabled(tmp_path, nvlink="100GB").estimate("allgather", 8, size),
    ):
        assert (other.provenance == ANALYTIC).all()


def a2a_rows(hidden: int, top_k: int, scale: float) -> list[dict[str, Any]]:
    table = {"comm_backend": "deepep_ll", "phase": "dispatch", "ep_size": 8, "node_num": 1, "hidden_size": hidden}
    table |= {"topk": top_k, "num_experts": 256}
    return [{**table, "num_tokens": tokens, "transmit_us": 20.0 + scale * tokens} for tokens in (1, 64, 256)]


def test_measured_all_to_alls_are_found_by_their_shape(tmp_path: Path) -> None:
    rows = [*a2a_rows(4096, 8, 1.0), *a2a_rows(7168, 8, 2.0), *a2a_rows(7168, 6, 50.0)]
    write(tmp_path, "comm/vllm/0.24.0/moe_a2a_perf", rows)
    found = tabled(tmp_path)
    tokens = np.array([0.0, 64, 128, 300])

    def ask(row_bytes: int, top_k: int = 8, ranks: int = 8) -> Estimate:
        return found.exchange(ExpertExchange("low_latency", "dispatch", row_bytes, top_k, 256), ranks, tokens)

    same = ask(2 * 7168)
    assert same.seconds * 1e6 == pytest.approx([0.0, 148.0, 276.0, 620.0])
    assert same.provenance[1:].tolist() == [MEASURED, INTERPOLATED, EXTRAPOLATED]
    near = ask(2 * 4608)
    assert near.seconds[1] * 1e6 == pytest.approx(20.0 + 64 * 4608 / 4096), "as many bytes of the nearest shape"
    assert near.provenance[1:].tolist() == [INTERPOLATED, INTERPOLATED, EXTRAPOLATED]
    assert (ask(2 * 2048).provenance == EXTRAPOLATED).all()
    for other in (ask(2 * 7168, top_k=4), ask(2 * 7168, ranks=16)):
        assert (other.provenance == ANALYTIC).all()


def test_low_latency_kernels_come_before_times_with_the_hosts_launches(tmp_path: Path) -> None:
    kernels = {"node_num": 1, "hidden_size": 7168, "num_topk": 8, "num_experts": 256, "combine_avg_t_us": 9.0}
    rows = [{**kernels, "num_token": n, "dispatch_avg_t_us": 12.0 + n} for n in (1, 64)]
    write(tmp_path, "comm/sglang/0.5.12/wideep_deepep_ll_perf", rows)
    write(tmp_path, "comm/vllm/0.24.0/moe_a2a_perf", [*a2a_rows(7168, 8, 2.0), *a2a_rows(7168, 6, 2.0)])
    for top_k, expected in ((8, 12.0 + 64), (6, 20.0 + 2 * 32)):  # 32 rows of 16 bits are 64 of 8
        exchange = ExpertExchange("low_latency", "dispatch", 2 * 7168, top_k, 256)
        assert micros(tabled(tmp_path).exchange(exchange, 8, at(32))) == pytest.approx(expected)


def test_all_to_alls_over_nodes_come_from_deepep_as_sglang_times_it(tmp_path: Path) -> None:
    table = {"node_num": 2, "hidden_size": 7168, "num_topk": 8, "num_experts": 256}
    times = {"dispatch_avg_t_us": 100.0, "combine_avg_t_us": 190.0}
    rows = [{**table, "num_token": n, **{key: n * each / 128 for key, each in times.items()}} for n in (1, 128)]
    write(tmp_path, "comm/sglang/0.5.6/wideep_deepep_ll_perf", rows)
    found = tabled(tmp_path)
    for step, row, expected in (("dispatch", 7168, 100.0), ("combine", 14336, 190.0)):
        exchange = ExpertExchange("low_latency", step, row, 8, 256)  # type: ignore[arg-type]
        assert micros(found.exchange(exchange, 16, at(128))) == pytest.approx(expected)
        lopsided = found.topology.span(16, first=4)
        assert (found.exchange(exchange, lopsided, at(128)).provenance == ANALYTIC).all()


@pytest.mark.skipif(find_database("h200") is None, reason="the package with measured tables is not installed")
@pytest.mark.parametrize(("mebibytes", "microseconds"), [(8, 61), (16, 100), (32, 173)])
def test_nvidias_table_of_four_h200_agrees(mebibytes: int, microseconds: float) -> None:
    database = find_database("h200")
    assert database is not None
    found = Collectives(topology_of(find_gpu("h200")), MeasuredCollectives(database))
    estimate = found.estimate("nccl_allreduce", 4, at(mebibytes << 20))
    assert estimate.provenance[0] == MEASURED
    assert micros(estimate) == pytest.approx(microseconds, rel=0.03)
