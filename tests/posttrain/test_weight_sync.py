"""Moving weights: bytes over the links they share, in every way a framework does it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.hardware import find_gpu, topology_of
from steelyard.model import Layout, load_model, parameters, weight_bytes
from steelyard.posttrain.changes import engines_begin, relayout, replica_to_rollout, replica_to_training
from steelyard.posttrain.sync import (
    Disk,
    RolloutEngines,
    Startup,
    broadcast,
    point_to_point,
    reshard,
    sleep,
    via_disk,
    wake,
    whole_weights,
)
from steelyard.posttrain.training import TrainLayout

MODEL = load_model("qwen3-14b")
NODES = topology_of(find_gpu("a800"))
NIC = NODES.nic.rate
TRAINING = TrainLayout(tp=4, dp=4, zero=1)
DISK = Disk(write=2e9, read=8e9)


def test_a_broadcast_takes_at_least_the_weights_over_one_network_link() -> None:
    found = broadcast(MODEL, NODES, TRAINING, [RolloutEngines(4, Layout(tp=2))])
    least = 2 * parameters(MODEL).total / NIC
    assert least < found.parts["broadcast"] < 1.2 * least
    assert found.bytes == 8 * whole_weights(MODEL)


def test_a_broadcast_hardly_cares_how_many_listen() -> None:
    few, many = (broadcast(MODEL, NODES, TRAINING, [RolloutEngines(n)]) for n in (8, 64))
    assert few.seconds <= many.seconds < 1.2 * few.seconds


def test_fsdp_and_tensor_parallel_ranks_gather_first() -> None:
    alone = broadcast(MODEL, NODES, TrainLayout(zero=1), [RolloutEngines(8)]).parts["gather"]
    tensor = broadcast(MODEL, NODES, TrainLayout(tp=8, zero=1), [RolloutEngines(8)]).parts["gather"]
    sharded = broadcast(MODEL, NODES, TrainLayout(dp=8, zero=3), [RolloutEngines(8)]).parts["gather"]
    assert alone == 0.0 < tensor == pytest.approx(sharded, rel=0.01)


def test_fetching_shards_is_bound_by_the_side_with_fewer_links() -> None:
    one = point_to_point(MODEL, NODES, TRAINING, [RolloutEngines(1, Layout(tp=4))])
    assert one.parts["transfer"] == pytest.approx(weight_bytes(MODEL, tp=4) / NIC, rel=0.01)
    many = point_to_point(MODEL, NODES, TRAINING, [RolloutEngines(32, Layout(tp=4))])
    assert many.parts["transfer"] == pytest.approx(128 * weight_bytes(MODEL, tp=4) / 16 / NIC, rel=0.01)


def test_shards_beat_a_broadcast_and_the_disk() -> None:
    rollouts = [RolloutEngines(4, Layout(tp=4)), RolloutEngines(8, Layout(tp=2))]
    fetched = point_to_point(MODEL, NODES, TRAINING, rollouts).seconds
    sent = broadcast(MODEL, NODES, TRAINING, rollouts).seconds
    assert fetched < sent < via_disk(MODEL, NODES, TRAINING, rollouts, DISK).seconds


def test_narrow_uplinks_slow_shards_down() -> None:
    narrow = replace(NODES, oversubscription=4.0)
    wide, slow = (
        point_to_point(MODEL, each, TRAINING, [RolloutEngines(16)]).parts["transfer"] for each in (NODES, narrow)
    )
    assert slow == pytest.approx(4 * wide, rel=0.01)


def test_a_disk_is_written_once_and_read_by_every_node() -> None:
    found = via_disk(MODEL, NODES, TRAINING, [RolloutEngines(32)], replace(DISK, latency=3.0))
    size = whole_weights(MODEL)
    assert found.parts["write"] == pytest.approx(size / 2e9 + 3.0)
    assert found.parts["read"] == pytest.approx(size / (8e9 / 4))
    assert found.bytes == 5 * size
    limited = via_disk(MODEL, NODES, TRAINING, [RolloutEngines(8)], replace(DISK, node_read=1e9))
    assert limited.parts["read"] == pytest.approx(size / 1e9)


def test_a_hybrid_engine_of_the_same_shards_moves_nothing() -> None:
    assert reshard(MODEL, NODES, TRAINING, Layout(tp=4)).seconds == 0.0
    wider = reshard(MODEL, NODES, TRAINING, Layout(tp=2)).seconds
    whole = reshard(MODEL, NODES, TRAINING, Layout(tp=1)).seconds
    assert 0 < wider < whole
    assert reshard(MODEL, NODES, TrainLayout(dp=8, zero=3), Layout(tp=4)).seconds == pytest.approx(
        7 / 8 * whole_weights(MODEL) / NODES.peer.rate, rel=0.1
    )
    with pytest.raises(UserError, match="16 training GPUs cannot be divided into engines of 3"):
        reshard(MODEL, NODES, TRAINING, Layout(tp=3))


def test_sleeping_and_waking_go_over_pcie() -> None:
    weights, rate = weight_bytes(MODEL, tp=4), 0.8 * 32e9
    assert sleep(NODES, weights).seconds == pytest.approx(weights / rate)
    assert sleep(NODES, weights, 20e9).seconds == pytest.approx((weights + 20e9) / rate)
    assert wake(NODES, 0.0, startup=Startup(wake=0.5)).seconds == 0.5
    assert wake(NODES, weights).parts["load"] == sleep(NODES, weights).parts["offload"]


def test_a_replica_that_joins_fetches_weights_and_its_part_of_the_states() -> None:
    total = parameters(MODEL).total
    found = replica_to_training(MODEL, NODES, TRAINING, Startup(groups=2.0))
    assert found.parts["fetch"] == pytest.approx((2 * total / 4 + 12 * total / 16) / NIC, rel=0.01)
    assert found.parts["groups"] == 2.0
    with pytest.raises(UserError, match="has one copy of the model"):  # no rank of FSDP holds one by itself
        replica_to_training(MODEL, NODES, TrainLayout(dp=16, zero=3))


def test_a_replica_that_leaves_hands_over_its_states_and_starts_an_engine() -> None:
    asleep = replica_to_rollout(MODEL, NODES, TRAINING, Layout(tp=4))
    fresh = replica_to_rollout(MODEL, NODES, TRAINING, Layout(tp=4), asleep=False)
    assert fresh.seconds - asleep.seconds == pytest.approx(Startup().engine - Startup().wake)
    assert asleep.parts["fetch"] == pytest.approx(weight_bytes(MODEL, tp=4) / NIC, rel=0.01)
    plain = replica_to_rollout(MODEL, NODES, replace(TRAINING, zero=0), Layout(tp=4))
    assert plain.parts["hand_over"] < 1e-3 < asleep.parts["hand_over"]
    with pytest.raises(UserError, match="4 GPUs cannot be divided into engines of 8"):
        replica_to_rollout(MODEL, NODES, TRAINING, Layout(tp=8))


def test_the_last_replica_cannot_leave_and_experts_keep_replicas_together() -> None:
    with pytest.raises(UserError, match="one copy of the model"):
        replica_to_rollout(MODEL, NODES, TrainLayout(tp=4), Layout(tp=4))
    spread = TrainLayout(tp=2, dp=8, ep=8)  # experts over four data-parallel ranks
    assert (spread.replica_gpus, spread.replicas) == (8, 2)


def test_nobody_to_send_to_is_a_mistake() -> None:
    with pytest.raises(UserError, match="no rollout engines"):
        broadcast(MODEL, NODES, TRAINING, [])


@given(st.floats(1.0, 16.0), st.integers(1, 16), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=40)
def test_more_bandwidth_is_never_slower_and_more_engines_never_faster(more: float, replicas: int, tp: int) -> None:
    faster = replace(NODES, nic=replace(NODES.nic, rated=more * NODES.nic.rated))
    engines, further = [RolloutEngines(replicas, Layout(tp=tp))], [RolloutEngines(replicas + 1, Layout(tp=tp))]
    for way in (broadcast, point_to_point):
        assert way(MODEL, faster, TRAINING, engines).seconds <= way(MODEL, NODES, TRAINING, engines).seconds
        assert way(MODEL, NODES, TRAINING, engines).seconds <= way(MODEL, NODES, TRAINING, further).seconds + 1e-9


def test_a_new_layout_is_fetched_by_each_gpu_from_those_that_had_the_states() -> None:
    more = TrainLayout(tp=4, dp=8, zero=1)
    wider = relayout(MODEL, NODES, TRAINING, more, Startup(groups=2.0))
    assert wider.parts["groups"] == 2.0 and wider.bytes == pytest.approx(more.gpus * _kept(more), rel=1e-3)
    sending = more.gpus * _kept(more) / TRAINING.gpus  # fewer send than fetch
    assert wider.parts["fetch"] == pytest.approx(sending / NIC, rel=0.05)
    shared = relayout(MODEL, NODES, TRAINING, TrainLayout(dp=16, zero=3))  # master weights and moments, nothing twice
    assert shared.bytes == pytest.approx(12 * parameters(MODEL).total, rel=1e-3)
    narrower = relayout(MODEL, NODES, more, TRAINING, Startup(groups=2.0))
    assert narrower.parts["fetch"] == pytest.approx(_kept(TRAINING) / NIC, rel=0.05)


def _kept(layout: TrainLayout) -> float:
    return parameters(MODEL).total * (2 / layout.tp + 12 / layout.gpus)


def test_experts_that_are_spread_over_ranks_are_gathered_before_they_are_sent() -> None:
    model, engines = load_model("qwen3-30b-a3b"), [RolloutEngines(4, Layout(tp=2))]
    found = broadcast(model, NODES, TrainLayout(dp=8, ep=8), engines).parts["gather"]
    experts = 2 * 48 * 128 * 3 * 2048 * 768
    assert found == pytest.approx(7 / 8 * experts / NODES.peer.rate, rel=0.1)
    assert broadcast(model, NODES, TrainLayout(dp=8), engines).parts["gather"] == 0.0


def test_experts_that_are_spread_over_ranks_are_fetched_once() -> None:
    """Each GPU of eight has an eighth of the experts; two such groups share their optimiser states."""
    model, layout = load_model("qwen3-30b-a3b"), TrainLayout(dp=16, ep=8, zero=1)
    found = relayout(model, NODES, layout, layout)
    weights = parameters(model)
    dense = weights.total - 48 * 128 * 3 * 2048 * 768  # layers, experts, matrices of each
    own = 2 * (dense + (weights.total - dense) / 8) + 12 * weights.total / 16
    assert found.bytes == pytest.approx(16 * own, rel=0.01)


def test_engines_that_sleep_are_sooner_there_than_those_that_start() -> None:
    woken, started = (engines_begin(MODEL, NODES, 16, 4, Layout(tp=4), asleep=asleep) for asleep in (True, False))
    assert started.seconds - woken.seconds == pytest.approx(Startup().engine - Startup().wake)
    assert woken.bytes == 4 * weight_bytes(MODEL, tp=Layout(tp=4))
