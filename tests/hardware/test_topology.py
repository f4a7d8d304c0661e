"""Nodes, links and where groups of ranks lie; and what a scenario may say about them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from steelyard.hardware import GpuLink, find_gpu, gpu_names, slower, topology_of
from steelyard.scenario.topology import TopologySpec


def spec(**fields: Any) -> TopologySpec:
    return TopologySpec.model_validate(fields)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400Gb", 50e9),
        ("400 Gb/s", 50e9),
        ("400Gbps", 50e9),
        ("450GB", 450e9),
        ("0.9 TB/s", 900e9),
        ("25000MB", 25e9),
        (50e9, 50e9),
        (1000, 1000.0),
    ],
)
def test_bandwidths_are_read_with_their_units(text: Any, rate: float) -> None:
    assert spec(nic=text).nic == pytest.approx(rate)


@pytest.mark.parametrize("value", ["400", "400gb", "fast", "-5GB", "0Gb", "400 Gbit", 0, -1, True, "1e3GB", [1]])
def test_a_bad_bandwidth_is_refused_with_what_would_be_right(value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        spec(nvlink=value)
    errors = refused.value.errors()
    assert len(errors) == 1 and errors[0]["loc"] == ("nvlink",)
    assert "400Gb" in errors[0]["msg"] and "50GB" in errors[0]["msg"]


@pytest.mark.parametrize(
    "fields",
    [{"oversubscription": 0.5}, {"gpus_per_node": 0}, {"nic_latency": -1}, {"nics": "1Gb"}, {"nodes_per_leaf": 0}],
)
def test_nonsense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(**fields)


@pytest.mark.parametrize("name", sorted(gpu_names()))
def test_the_usual_node_comes_from_the_catalog(name: str) -> None:
    gpu = find_gpu(name)
    topology = topology_of(gpu)
    assert topology.gpus_per_node == gpu.gpus_per_node
    assert topology.peer.rated == gpu.peer_bandwidth and topology.nic.rated == gpu.nic_bandwidth
    assert topology.peer.kind == ("nvlink" if gpu.nvlink_bandwidth else "pcie" if gpu.peer_access else "host")
    assert (0.5 if gpu.peer_access else 0.25) * gpu.peer_bandwidth < topology.peer.rate < gpu.peer_bandwidth
    assert topology_of(gpu, spec(peer_access=True)).usual_node, "times were measured where GPUs reach each other"
    assert topology.usual_node == gpu.peer_access


def test_what_a_scenario_gives_replaces_the_usual() -> None:
    given_ = spec(gpus_per_node=4, nvlink="200GB", nic="100Gb", nic_latency=1e-3, oversubscription=2)
    topology = topology_of(find_gpu("h100"), given_)
    assert topology.gpus_per_node == 4
    assert topology.peer == GpuLink("nvlink", 200e9, topology_of(find_gpu("h100")).peer.latency)
    assert topology.nic == GpuLink("network", 12.5e9, 1e-3)
    assert not topology.usual_node, "times measured in other nodes do not hold here"
    assert topology_of(find_gpu("h100"), spec(nic="100Gb")).usual_node, "another NIC leaves the inside as it is"
    assert topology_of(find_gpu("h100"), spec(nic_latency=0)).nic.latency == 0


def test_a_node_may_have_nvlink_that_the_gpu_usually_lacks() -> None:
    assert topology_of(find_gpu("l40s"), spec(nvlink="100GB")).peer.kind == "nvlink"


@given(
    per_node=st.integers(1, 9),
    per_leaf=st.integers(1, 4),
    ranks=st.integers(1, 40),
    first=st.integers(0, 30),
    stride=st.integers(1, 9),
)
def test_groups_lie_where_their_ranks_lie(per_node: int, per_leaf: int, ranks: int, first: int, stride: int) -> None:
    topology = topology_of(find_gpu("h100"), spec(gpus_per_node=per_node, nodes_per_leaf=per_leaf))
    span = topology.span(ranks, first, stride)
    nodes = [(first + stride * i) // per_node for i in range(ranks)]
    shared = [nodes.count(node) for node in set(nodes)]
    assert (span.ranks, span.nodes, span.fewest, span.most) == (ranks, len(set(nodes)), min(shared), max(shared))
    assert span.leaves == len({node // per_leaf for node in nodes})


def test_consecutive_ranks_fill_nodes() -> None:
    topology = topology_of(find_gpu("h100"))
    assert [topology.span(ranks).nodes for ranks in (1, 8, 9, 16, 64)] == [1, 1, 2, 2, 8]
    assert topology.span(4, first=6).nodes == 2
    assert topology.span(2, stride=8).nodes == 2, "data-parallel ranks of tp 8"
    assert topology_of(find_gpu("gb200")).span(72).nodes == 1


def test_only_what_leaves_a_leaf_is_oversubscribed() -> None:
    topology = topology_of(find_gpu("h100"), spec(oversubscription=4, nodes_per_leaf=2))
    assert topology.network(topology.span(16)).rated == 50e9
    assert topology.network(topology.span(17)).rated == 12.5e9
    plain = topology_of(find_gpu("h100"), spec(oversubscription=2))
    assert plain.network(plain.span(16)).rated == 25e9
    assert plain.link(plain.span(8)) == plain.peer and plain.link(plain.span(9)).kind == "network"


def test_many_gpus_share_the_hosts_bridges_where_there_is_no_nvlink() -> None:
    topology = topology_of(find_gpu("rtx-pro-6000"), spec(peer_access=True))
    pair, four = (topology.inside(topology.span(ranks)).rate for ranks in (2, 4))
    assert four < pair == topology.peer.rate
    switched = topology_of(find_gpu("h100"))
    assert switched.inside(switched.span(8)) == switched.peer


def test_without_peer_access_all_passes_through_the_hosts_memory() -> None:
    """Whatever the card can do: a scenario knows its host, the catalog only the usual one."""
    for name, rate in (("rtx-pro-6000", 18.7e9), ("rtx-4090", 12.8e9)):
        usual, able = (topology_of(find_gpu(name), spec(peer_access=peer)).peer for peer in (None, True))
        assert (usual.kind, able.kind) == ("host", "pcie")
        assert usual.rate == pytest.approx(rate) and able.rate > 1.4 * rate
    assert topology_of(find_gpu("l40s")).peer.kind == "pcie"
    assert topology_of(find_gpu("l40s"), spec(peer_access=False)).peer.kind == "host"
    assert topology_of(find_gpu("h100"), spec(peer_access=False)).peer.kind == "nvlink", "which is peer access"


def test_two_kinds_of_gpu_talk_at_the_slower_ones_rate() -> None:
    fast, slow = GpuLink("network", 50e9, 3e-6), GpuLink("network", 25e9, 2e-6)
    assert slower(fast, slow) == slower(slow, fast) == GpuLink("network", 25e9, 3e-6)
