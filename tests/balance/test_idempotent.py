"""Reports of a real cluster come late, twice or in another order: what the core knows and decides stays the same."""

from __future__ import annotations

import io
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.core import Core
from steelyard.balance.events import Generated
from steelyard.balance.inbox import Envelope
from steelyard.balance.kinds import Event
from steelyard.balance.log import Journal, read_event, read_header, replay
from steelyard.balance.pool import PoolFormed, StepBegan, StepEnded
from steelyard.balance.settings import TailSettings
from steelyard.balance.tail import Divided, OverSampling, PartialRollout, Reconfiguring, Repacking, TailBatching
from steelyard.posttrain.run import posttrain
from steelyard.scenario import posttrain_from_dict
from support.cluster import WIDE, Cluster, check_loads, settings
from support.engine_worlds import settled
from support.states import state

TAILS: dict[str, TailSettings | None] = {
    "none": None,
    "over-sampling": OverSampling(1.5),
    "tail-batching": TailBatching(1.4, 1.5),
    "partial": PartialRollout(500),
    "divided": Divided(400),
    "repack": Repacking(few=0.5),
    "reconfigure": Reconfiguring(few=0.7, wide=WIDE),
    "reconfigure if it pays": Reconfiguring(wide=WIDE),
}
MODES: dict[str, dict[str, Any]] = {
    "synchronous": {"staleness": 0},
    "carrying over": {"staleness": 1},
    "one step off": {"staleness": 2, "synchronous": False, "lead": 1},
    "streaming": {"staleness": 2, "synchronous": False, "lead": 1, "streaming": True},
    "few at once": {"staleness": 2, "synchronous": False, "lead": 2, "concurrency": 5},
    "dropping": {"staleness": 1, "synchronous": False, "lead": 1, "late": "drop"},
    "training on all": {"staleness": 1, "synchronous": False, "lead": 1, "concurrency": 8, "late": "train"},
}
ROUTERS = ("cost-aware", "c-mlfq", "heddle", "prefix-aware", "least-outstanding", "power-of-two", "shortest-first")


@st.composite
def clusters(draw: st.DrawFn, events: int = 250) -> Cluster:
    """One that has run for a while, or to its end."""
    tail, mode = draw(st.sampled_from(list(TAILS))), draw(st.sampled_from(list(MODES)))
    if tail in ("over-sampling", "partial") and mode == "synchronous":
        mode = "carrying over"  # they carry samples over to later steps
    router = draw(st.sampled_from(ROUTERS[:-1]))
    made = settings(TAILS[tail], router, **MODES[mode])
    cluster = Cluster(made.core(), Random(draw(st.integers(0, 2**32))), made=made)
    cluster.begin()
    for _ in range(draw(st.integers(0, events))):
        if not cluster.happen():
            break
    return cluster


def fresh(cluster: Cluster) -> Core:
    """A core as the cluster's was before its first event."""
    assert cluster.made is not None
    return cluster.made.core()


@settled(60)
@given(clusters(), st.data())
def test_duplicates_and_reordering_end_in_the_same_state(cluster: Cluster, data: st.DataObject) -> None:
    """Every envelope at least once, some of them again, none further than so many places from where it belongs."""
    dice, reach = Random(data.draw(st.integers(0, 2**32))), data.draw(st.integers(1, 30))
    clean = [envelope for envelope, _ in cluster.log]
    shaken = [(place + dice.random() * reach, envelope) for place, envelope in enumerate(clean)]
    shaken += [(place + dice.random() * 3 * reach, clean[place]) for place in dice.choices(range(len(clean)), k=40)]
    other = fresh(cluster)
    commands = [
        command for _, envelope in sorted(shaken, key=lambda each: each[0]) for command in other.decide(envelope)
    ]
    assert commands == [command for _, each in cluster.log for command in each]
    assert other.dropped["repeated"] - cluster.core.dropped["repeated"] == 40
    other._inbox.dropped.clear()
    assert state(other) == state(cluster.core)


@settled(60)
@given(clusters(), st.data())
def test_what_was_reported_before_changes_nothing(cluster: Cluster, data: st.DataObject) -> None:
    """A driver that starts anew reports old events once more, under identities of its own."""
    dice = Random(data.draw(st.integers(0, 2**32)))
    events = [envelope.event for envelope, _ in cluster.log if not isinstance(envelope.event, Generated)]
    past = dice.choices(events, k=60)  # counts of tokens are sums, which may be told twice
    before = known(cluster.core)
    for place, event in enumerate(past):
        assert cluster.core.decide(Envelope(1, place, event)) == [], event
    assert known(cluster.core) == before
    assert cluster.core.dropped.total() >= 60


@settled(60)
@given(clusters(), st.data())
def test_nothing_that_is_reported_raises(cluster: Cluster, data: st.DataObject) -> None:
    """Events of another run, with epochs, replicas and trajectories that this one has never heard of."""
    dice = Random(data.draw(st.integers(0, 2**32)))
    other = Cluster(settings().core(), dice)
    other.begin()
    for _ in range(100):
        other.happen()
    for place, (envelope, _) in enumerate(dice.sample(other.log, min(len(other.log), 80))):
        cluster.core.decide(Envelope(1, place, envelope.event))
        check_loads(cluster.core)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tail", TAILS)
def test_a_run_with_losses_ends_with_nothing_lost_and_no_seat_taken(tail: str, mode: str) -> None:
    if tail in ("over-sampling", "partial") and mode == "synchronous":
        pytest.skip("carries samples over")
    for seed in range(5):
        made = settings(TAILS[tail], **MODES[mode])
        cluster = Cluster(made.core(), Random(seed))
        cluster.begin()
        for _ in range(20_000):
            check_loads(cluster.core)
            if cluster.version == made.rounds.steps or not cluster.happen():
                break
        assert cluster.version == made.rounds.steps, "stuck"
        assert len(set(cluster.trained)) == len(cluster.trained), "trained on twice"
        # Where batches overlap, replicas are changed under running trajectories: then reports cross commands.
        if mode == "synchronous" or not tail.startswith("reconfigure"):
            assert not cluster.core.dropped, cluster.core.dropped
        running = set(cluster.core.placement.rollouts.running)
        assert running == set(cluster.samples), "lost"
        if made.rounds.waits:
            assert len(cluster.trained) == made.rounds.steps * 6 and not running
            assert all(not each.busy and not each.tokens for each in cluster.core.placement.rollouts.replicas.values())


def known(core: Core) -> object:
    """All that a core decides by."""
    return state((core.placement, core.rounds, core.pool, core.planning))


@pytest.mark.parametrize(
    "changes",
    [
        {"planner": "simulated", "pool": "payoff", "steps": 6},
        {"planner": "search", "pool": "thresholds", "steps": 6, "mode": "asynchronous"},
        {"pool": "payoff", "steps": 8, "training": {"dp": 1}, "trajectories": {"preset": "search", "prompts": 16}},
    ],
    ids=str,
)
def test_a_run_with_planner_and_pool_is_decided_the_same_among_old_reports(changes: dict[str, Any]) -> None:
    """Every kind of event of a whole run, each followed by some that were reported before."""
    small = {
        "model": "qwen2.5-0.5b",
        "gpu": "a800",
        "trajectories": {"preset": "search", "prompts": 8, "group": 4},
        "mode": "one-step-off",
        "rollout": [{"tp": 1, "replicas": 4}, {"tp": 2, "replicas": 1}],
        "training": {"dp": 2},
    }
    file = io.StringIO()
    posttrain(posttrain_from_dict({**small, **changes}), journal=Journal(file))
    rows = [("log", json.loads(line)) for line in file.getvalue().splitlines()]
    core = read_header(rows[0][1], "log").settings.core()
    dice, past = Random(1), list[Event]()
    for replayed in replay(rows[1:], core):
        assert replayed.logged == replayed.decided, replayed.event
        past.append(read_event(json.loads(replayed.event), "log").event)
        for old in dice.choices(past, k=2):
            assert core.apply(old) == [], old
    assert {PoolFormed, StepBegan, StepEnded} <= set(map(type, past))
