"""Placement over random event streams, some of it late or told twice: nobody lost or placed twice, loads as counted,
replays identical."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.beginnings import ByPrompt
from steelyard.balance.commands import Park, Place, RoundCommand
from steelyard.balance.core import Core
from steelyard.balance.estimate import UNKNOWN, ByTurn, Estimator, History, Left, Oracle, PaperTrie, SuffixBackoff
from steelyard.balance.events import (
    Aborted,
    Begun,
    Called,
    Ended,
    Moved,
    Paused,
    ReplicaDown,
    ReplicaUp,
    Resumed,
    Returned,
    RolloutEvent,
    Sent,
)
from steelyard.balance.inbox import Envelope
from steelyard.balance.kinds import Command
from steelyard.balance.line import Line
from steelyard.balance.log import Journal, event_line, read_event, replay
from steelyard.balance.placement import Placement
from steelyard.balance.rollouts import Rollouts, Running
from steelyard.balance.rounds.protocol import RoundInput
from steelyard.balance.route import BucketSpeed
from steelyard.balance.route.rollout import ORACLES, ROLLOUT_ROUTERS, rollout_router
from steelyard.errors import UserError
from steelyard.records import Trajectory, Turn
from support.engine_worlds import settled

SPEEDS = {
    tp: BucketSpeed(((1, 0.02 / tp + 0.004), (64, 0.05 / tp + 0.004)), 1e-4 / tp, 1e-5, read=1e-8 / tp, reach=0.01)
    for tp in (1, 2, 4, 8)
}

turns = st.builds(
    Turn,
    generated=st.integers(1, 9_000),
    tool=st.sampled_from(["ls", "test", None]),
    outcome=st.sampled_from(["ok", "error"]),
    returned=st.integers(0, 6_000),
    latency=st.sampled_from([None, 0.5, 30.0]),
)
trajectories = st.lists(
    st.tuples(st.sampled_from("pq"), st.integers(0, 4_000), st.lists(turns, min_size=1, max_size=5)), max_size=9
).map(
    lambda rows: [
        Trajectory(f"t{number}", prompt, prompt, tuple(some), tokens)
        for number, (prompt, tokens, some) in enumerate(rows)
    ]
)
replicas = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.sampled_from([3_000, 20_000])),
    min_size=1,
    max_size=5,
)
acts = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 99)), min_size=20, max_size=70)


class Quiet:
    """Rounds that begin nothing and train on nothing: tests do all that themselves."""

    counts_tokens = False

    def decide(self, event: RoundInput) -> list[RoundCommand]:
        return []

    def unfinished(self) -> list[str]:
        return []


def core_of(name: str, everyone: Iterable[Trajectory], estimator: Callable[[], Estimator] = ByTurn) -> Core:
    everyone = list(everyone)
    router = rollout_router(name, speeds=SPEEDS)
    if name in ORACLES:
        return Core(Placement(router, Oracle(everyone), Oracle(everyone)), Quiet())
    return Core(Placement(router, estimator()), Quiet())


def written_again(log: str, core: Core) -> str:
    """The log of a core that is told what another was."""
    rows = ((f"log:{number}", json.loads(line)) for number, line in enumerate(log.splitlines(), 1))
    return "".join(f"{line}\n" for each in replay(rows, core) for line in (each.event, *each.decided))


class World:
    """Carries commands out, makes things happen, and knows by itself who should be where."""

    def __init__(self, core: Core, everyone: list[Trajectory], fleet: list[tuple[int, int, int]]) -> None:
        self.core = core
        self.to_begin = everyone[::-1]
        self.fleet = fleet
        self.up: set[int] = set()
        self.came_up = [0] * len(fleet)  # how often
        self.plan = {each.id: each for each in everyone}
        self.turn: dict[str, int] = {}  # of all under way
        self.epoch: dict[str, int] = {}  # of these, by the last place or since they were resumed
        self.at: dict[str, int] = {}  # those generating or on their way to it: the replica
        self.moving: set[str] = set()
        self.in_tool: set[str] = set()
        self.paused: set[str] = set()
        self.lost: set[str] = set()  # whose replica went down in the middle of their turn
        self.cached: dict[str, int] = {}
        self.ended: list[str] = []
        self.aborted: list[str] = []
        self.told: list[RolloutEvent] = []  # all that counted
        self.log = StringIO()
        self.journal = Journal(self.log)
        self.reports = 0
        self.clock = 0.0

    @property
    def wanting(self) -> set[str]:
        return self.turn.keys() - self.at.keys() - self.in_tool - self.paused

    def tell(self, event: RolloutEvent) -> None:
        """Something that counts; once more, it does not."""
        before = self.core.dropped.total()
        for command in self.report(event):
            self.carry_out(command, event)
        assert self.core.dropped.total() == before
        self.check()
        self.told.append(event)
        self.tell_in_vain(event)

    def tell_in_vain(self, event: RolloutEvent) -> None:
        """Something that is late, or was told before."""
        before = self.core.dropped.total()
        assert self.report(event) == []
        assert self.core.dropped.total() == before + 1
        self.check()

    def report(self, event: RolloutEvent) -> list[Command]:
        envelope = Envelope(0, self.reports, event)
        self.reports += 1
        self.journal.event(envelope)
        commands = self.core.decide(envelope)
        self.journal.commands(commands)
        return commands

    def carry_out(self, command: Command, event: RolloutEvent) -> None:
        if isinstance(command, Park):
            name = command.trajectory
            assert isinstance(event, Called | Paused) and event.trajectory == name
            if command.cache == "drop":
                self.cached.pop(name, None)
            return
        assert isinstance(command, Place)
        name = command.trajectory
        assert command.replica in self.up, "placed on a replica that is down"
        assert name in self.wanting, "placed without wanting a turn"
        assert command.source == self.cached.get(name)
        assert command.epoch == self.epoch[name] + 1
        self.epoch[name] = command.epoch
        self.lost.discard(name)
        self.at[name] = command.replica
        if command.source not in (None, command.replica) and command.cache == "keep":
            self.moving.add(name)
        else:
            self.cached[name] = command.replica

    def check(self) -> None:
        rollouts = self.core.placement.rollouts
        assert rollouts.running.keys() == self.turn.keys()
        assert rollouts.replicas.keys() == self.up
        assert {trajectory.name for trajectory in rollouts.waiting} == self.wanting
        assert len(rollouts.waiting) == len(self.wanting)
        for name, trajectory in rollouts.running.items():
            assert trajectory.epoch == self.epoch[name]
            assert trajectory.replica == self.cached.get(name)
            assert trajectory.target == (self.at[name] if name in self.moving else None)
            assert (trajectory.doing == "tool", trajectory.doing == "paused") == (
                name in self.in_tool,
                name in self.paused,
            )
        for number, replica in rollouts.replicas.items():
            placed = [trajectory for trajectory in rollouts.running.values() if trajectory.replica == number]
            coming = [trajectory for trajectory in rollouts.running.values() if trajectory.target == number]
            busy = [trajectory for trajectory in placed if trajectory.doing == "generating"] + coming
            assert replica.placed == {trajectory.name: trajectory for trajectory in placed}
            assert replica.coming == {trajectory.name: trajectory for trajectory in coming}
            assert replica.busy == len(busy) == sum(at == number for at in self.at.values())
            assert replica.active == sum(trajectory.context for trajectory in busy)
            assert replica.tokens == sum(
                trajectory.context
                for trajectory in [*placed, *coming]
                if trajectory in coming or trajectory.cache == "keep"
            )
            if replica.busy == 0:
                assert not self.wanting, f"replica {number} is idle while {self.wanting} wait"

    def begin(self, _: int) -> None:
        if self.to_begin:
            each = self.to_begin.pop()
            self.turn[each.id] = self.epoch[each.id] = 0
            self.tell(Begun(self.clock, each.id, each.prompt, each.prompt_tokens))

    def stop(self, pick: int) -> None:
        """Someone's turn is over. Now and then that is said of one that waits. It counts if its replica was lost in the
        middle of its turn, and is wrong if it has not begun."""
        if not pick % 5 and self.wanting:
            name = sorted(self.wanting)[pick % len(self.wanting)]
            if name in self.lost:
                self.end_turn(name)
            else:
                self.tell_in_vain(self.turn_over(name))
        elif self.at:
            self.end_turn(sorted(self.at)[pick % len(self.at)])

    def end_turn(self, name: str) -> None:
        over = self.turn_over(name)
        self.leave(name)
        if isinstance(over, Ended):
            del self.turn[name]
            self.cached.pop(name, None)
            self.ended.append(name)
        else:
            self.in_tool.add(name)
        self.tell(over)

    def leave(self, name: str) -> None:
        """It does not generate any more, and whatever was on its way has arrived."""
        self.lost.discard(name)
        if name in self.moving:
            self.moving.remove(name)
            self.cached[name] = self.at[name]
        self.at.pop(name, None)

    def turn_over(self, name: str) -> Called | Ended:
        turns, now, epoch = self.plan[name].turns, self.turn[name], self.epoch[name]
        if now == len(turns) - 1:
            return Ended(self.clock, name, epoch, turns[now])
        return Called(self.clock, name, epoch, turns[now].generated)

    def come_back(self, pick: int) -> None:
        if self.in_tool:
            name = sorted(self.in_tool)[pick % len(self.in_tool)]
            self.in_tool.remove(name)
            turn = self.plan[name].turns[self.turn[name]]
            self.turn[name] += 1
            self.tell(Returned(self.clock, name, self.epoch[name], turn))

    def pause(self, pick: int) -> None:
        some = sorted(self.at.keys() | self.wanting)
        if some:
            name = some[pick % len(some)]
            self.leave(name)
            self.paused.add(name)
            *before, now = self.plan[name].turns[: self.turn[name] + 1]
            generated = sum(turn.generated for turn in before) + pick % now.generated
            self.tell(Paused(self.clock, name, self.epoch[name], generated))

    def resume(self, pick: int) -> None:
        if self.paused:
            name = sorted(self.paused)[pick % len(self.paused)]
            self.paused.remove(name)
            self.epoch[name] += 1
            self.tell(Resumed(self.clock, name, self.epoch[name], pick or None))

    def arrive(self, pick: int) -> None:
        if self.moving:
            name = sorted(self.moving)[pick % len(self.moving)]
            self.moving.remove(name)
            self.cached[name] = self.at[name]
            self.tell(Moved(self.clock, name, self.epoch[name]))

    def abort(self, pick: int) -> None:
        if self.turn and pick % 3 == 0:
            name = sorted(self.turn)[pick % len(self.turn)]
            del self.turn[name]
            self.forget(name)
            self.aborted.append(name)
            self.tell(Aborted(self.clock, name, pick % (self.epoch[name] + 1)))  # of any of its places

    def forget(self, name: str) -> None:
        self.lost.discard(name)
        self.at.pop(name, None)
        self.cached.pop(name, None)
        self.moving.discard(name)
        self.in_tool.discard(name)
        self.paused.discard(name)

    def lose(self, number: int) -> None:
        self.up.discard(number)
        for name in [name for name, at in self.at.items() if at == number]:
            del self.at[name]
            self.lost.add(name)
            self.moving.discard(name)
        for name in [name for name, at in self.cached.items() if at == number]:
            del self.cached[name]

    def go_up(self, pick: int) -> None:
        number = pick % len(self.fleet)
        self.lose(number)  # if it was up, it has started anew
        self.up.add(number)
        self.came_up[number] += 1
        self.tell(ReplicaUp(self.clock, number, *self.fleet[number], self.came_up[number]))

    def go_down(self, pick: int) -> None:
        if self.up and pick % 3:
            number = sorted(self.up)[pick % len(self.up)]
            self.lose(number)
            self.tell(ReplicaDown(self.clock, number, self.came_up[number]))

    def repeat(self, pick: int) -> None:
        """Something of long ago arrives once more."""
        if self.told:
            self.tell_in_vain(self.told[pick % len(self.told)])

    def play(self, steps: list[tuple[int, int]]) -> None:
        """Begin with every other replica and the first trajectories, then let anything happen."""
        for number in range(0, len(self.fleet), 2):
            self.go_up(number)
        for _ in range(3):
            self.begin(0)
        does = [self.begin, self.stop, self.stop, self.stop, self.come_back, self.come_back, self.arrive, self.abort]
        does += [self.go_up, self.go_down, self.pause, self.resume, self.repeat]
        for what, pick in steps:
            self.clock += 0.25
            does[what](pick)

    def finish(self) -> None:
        """Let everything end that has not."""
        for number in range(len(self.fleet)):
            if number not in self.up:
                self.go_up(number)
        while self.to_begin or self.turn:
            self.clock += 0.25
            before = len(self.told)
            self.begin(0)
            self.resume(0)
            self.come_back(0)
            self.stop(1)
            assert len(self.told) > before, f"stuck: {self.wanting} wait"


@pytest.mark.parametrize("name", ROLLOUT_ROUTERS)
@settled(40)
@given(trajectories, replicas, acts)
def test_nobody_is_lost_or_placed_twice(
    name: str, everyone: list[Trajectory], fleet: list[tuple[int, int, int]], steps: list[tuple[int, int]]
) -> None:
    world = World(core_of(name, everyone), everyone, fleet)
    world.play(steps)
    world.finish()
    assert sorted([*world.ended, *world.aborted]) == sorted(each.id for each in everyone)
    for replica in world.core.placement.rollouts.replicas.values():
        assert (replica.busy, replica.active, replica.tokens, replica.placed, replica.coming) == (0, 0, 0, {}, {})
    log = world.log.getvalue()
    assert written_again(log, core_of(name, everyone)) == log


@settled(25)
@given(trajectories, replicas, acts, st.sampled_from([SuffixBackoff, PaperTrie]))
def test_the_log_is_written_again_byte_for_byte(
    everyone: list[Trajectory],
    fleet: list[tuple[int, int, int]],
    steps: list[tuple[int, int]],
    estimator: Callable[[], Estimator],
) -> None:
    world = World(core_of("cost-aware", everyone, estimator), everyone, fleet)
    world.play(steps)
    world.finish()
    log = world.log.getvalue()
    assert log.count('"id":') == world.reports
    assert written_again(log, core_of("cost-aware", everyone, estimator)) == log


_HALF = {"generated": 1.5, "tool": None, "outcome": None, "returned": 0, "latency": None}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ({"at": 1.0}, "log:1: kind is None"),
        ({"kind": "Begin", "at": 1.0}, "log:1: kind is 'Begin'; did you mean 'Begun'"),
        ({"kind": "Moved", "at": 1.0, "trajectory": "a", "epoch": 1, "to": 3}, "log:1: Moved has no 'to'"),
        ({"kind": "Moved", "at": "now", "trajectory": "a", "epoch": 1}, "log:1: Moved: at: .*found 'now'"),
        ({"kind": "Moved", "at": 1.0, "epoch": 1}, "log:1: Moved: trajectory is missing"),
        (
            {"kind": "Ended", "at": 1, "trajectory": "a", "epoch": 1, "turn": _HALF},
            "turn: Turn: generated: .*found '1.5'",
        ),
    ],
)
def test_a_bad_line_says_where(line: dict[str, object], wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        read_event({"id": [0, 0], **line}, "log:1")


def test_a_line_is_identity_kind_and_fields() -> None:
    envelope = Envelope(2, 7, Returned(1.5, "a", 3, Turn(3, "ls", "ok", 7)))
    line = event_line(envelope)
    assert line == (
        '{"id":[2,7],"kind":"Returned","at":1.5,"trajectory":"a","epoch":3,'
        '"turn":{"generated":3,"tool":"ls","outcome":"ok","returned":7,"latency":null}}'
    )
    assert read_event(json.loads(line), "log:1") == envelope


# -- by hand ----------------------------------------------------------------------------------------------------------


def on_its_way(replicas: int) -> tuple[Rollouts, Running]:
    """One whose second turn is on replica 1, and its cache not yet there."""
    rollouts = Rollouts()
    for number in range(replicas):
        rollouts.apply(ReplicaUp(0.0, number, 1, 4, 1_000))
    trajectory = rollouts.apply(Begun(0.0, "a", "p", 100))
    assert trajectory is not None
    rollouts.place(trajectory, 0)
    rollouts.apply(Called(1.0, "a", 1, 20))
    rollouts.apply(Returned(2.0, "a", 1, Turn(20, "ls", "ok", 30)))
    rollouts.place(trajectory, 1)
    return rollouts, trajectory


def test_a_move_holds_both_places_until_it_has_arrived() -> None:
    rollouts = Rollouts()
    for number in (0, 1):
        rollouts.apply(ReplicaUp(0.0, number, 1, 4, 1_000))
    trajectory = rollouts.apply(Begun(0.0, "a", "p", 100))
    assert trajectory is not None
    rollouts.place(trajectory, 0)
    rollouts.apply(Called(1.0, "a", 1, 20))
    assert (rollouts.replicas[0].busy, rollouts.replicas[0].tokens) == (0, 120)
    rollouts.apply(Returned(2.0, "a", 1, Turn(20, "ls", "ok", 30)))
    assert rollouts.place(trajectory, 1) == 0
    assert (rollouts.replicas[0].tokens, rollouts.replicas[1].tokens) == (150, 150)
    assert (rollouts.replicas[0].busy, rollouts.replicas[1].busy) == (0, 1)
    rollouts.apply(Moved(3.0, "a", 2))
    assert (rollouts.replicas[0].tokens, rollouts.replicas[1].tokens) == (0, 150)
    assert (trajectory.replica, trajectory.target, trajectory.doing) == (1, None, "generating")


def test_one_that_is_sent_on_before_it_has_arrived_takes_up_no_place_on_the_way() -> None:
    rollouts, _ = on_its_way(3)
    rollouts.apply(Sent(2.5, "a", 3, 2))
    assert (rollouts.replicas[1].busy, rollouts.replicas[1].tokens, rollouts.replicas[1].coming) == (0, 0, {})
    assert rollouts.accepts(Moved(3.0, "a", 2)) == "late"  # of where it does not go any more
    rollouts.apply(Moved(3.0, "a", 3))
    assert [each.tokens for each in rollouts.replicas.values()] == [0, 0, 150]


def test_one_that_is_sent_while_it_waits_is_placed_there() -> None:
    core = Placement(rollout_router("sticky"), ByTurn())
    core.decide(ReplicaUp(0.0, 0, 1, 1, 1_000))
    core.decide(Begun(0.0, "a", "p", 100))
    trajectory = core.rollouts.apply(Begun(0.0, "b", "p", 100))  # in line
    core.rollouts.apply(ReplicaUp(1.0, 1, 1, 1, 1_000))
    assert trajectory is not None and trajectory.doing == "waiting"
    assert core.decide(Sent(1.0, "b", 1, 1)) == [Place("b", 1, epoch=1)]
    assert (trajectory.replica, trajectory.doing) == (1, "generating")


def test_a_target_lost_on_the_way_leaves_the_cache_where_it_was() -> None:
    rollouts, trajectory = on_its_way(2)
    rollouts.apply(ReplicaDown(2.5, 1))
    assert (trajectory.replica, trajectory.target, trajectory.doing, "a" in rollouts.waiting) == (
        0,
        None,
        "waiting",
        True,
    )
    assert rollouts.place(trajectory, 0) == 0


def test_offloaded_and_dropped_caches_take_no_room() -> None:
    rollouts = Rollouts()
    rollouts.apply(ReplicaUp(0.0, 0, 1, 4, 1_000))
    for name in "abc":
        trajectory = rollouts.apply(Begun(0.0, name, "p", 100))
        assert trajectory is not None
        rollouts.place(trajectory, 0)
        rollouts.apply(Called(1.0, name, 1, 10))
        rollouts.park(trajectory, {"a": "keep", "b": "offload", "c": "drop"}[name])  # type: ignore[arg-type]
    assert rollouts.replicas[0].tokens == 110
    assert [trajectory.replica for trajectory in rollouts.running.values()] == [0, 0, None]


# -- what counts ------------------------------------------------------------------------------------------------------

TURN = Turn(20, "ls", "ok", 30)
BEGUN: tuple[RolloutEvent, ...] = (ReplicaUp(0.0, 0, 1, 4, 1_000), Begun(0.0, "a", "p", 100))  # placed: epoch 1
CALLED = (*BEGUN, Called(1.0, "a", 1, 20))
RETURNED = (*CALLED, Returned(2.0, "a", 1, TURN))  # placed again: epoch 2
ENDED = (*BEGUN, Ended(1.0, "a", 1, TURN))
ABORTED = (*BEGUN, Aborted(1.0, "a", 1))
BEGUN_AGAIN = (*ABORTED, Begun(2.0, "a", "p", 100, epoch=2))  # placed: epoch 3
PAUSED = (*BEGUN, Paused(1.0, "a", 1, 20))
MOVING = (*BEGUN, ReplicaUp(0.5, 1, 1, 4, 1_000), Sent(1.0, "a", 2, 1))  # epoch 2
ARRIVED = (*MOVING, Moved(2.0, "a", 2))
SENT = (*CALLED, ReplicaUp(1.0, 1, 1, 4, 1_000), Sent(2.0, "a", 2, 1))  # while its tool runs: epoch 2
RESUMED = (*PAUSED, ReplicaDown(1.5, 0), Resumed(2.0, "a", 2))  # waits, in epoch 2
LOST = (*BEGUN, ReplicaDown(1.0, 0))  # waits, with the epoch of the place that was lost
FOUND = (*LOST, ReplicaUp(2.0, 0, 1, 4, 1_000, epoch=1))  # placed again: epoch 2


def core_after(events: Iterable[RolloutEvent]) -> Core:
    core = core_of("sticky", [])
    for event in events:
        assert core.placement.rollouts.accepts(event) is None
        core.apply(event)
    return core


def picture(rollouts: Rollouts) -> tuple[object, ...]:
    """All that events can change."""
    trajectories = [
        (
            name,
            trajectory.doing,
            trajectory.replica,
            trajectory.target,
            trajectory.cache,
            trajectory.fresh,
            trajectory.epoch,
            trajectory.since,
            tuple(trajectory.history.turns),
        )
        for name, trajectory in rollouts.running.items()
    ]
    loads = [
        (each.number, each.epoch, each.busy, each.active, each.tokens, list(each.placed), list(each.coming))
        for each in rollouts.replicas.values()
    ]
    return trajectories, loads, [trajectory.name for trajectory in rollouts.waiting]


@pytest.mark.parametrize(
    ("before", "event", "reason"),
    [
        (CALLED, Called(2.0, "a", 1, 20), "repeated"),
        (RETURNED, Called(3.0, "a", 1, 20), "late"),
        (BEGUN, Called(1.0, "a", 2, 20), "out of order"),
        (BEGUN, Called(1.0, "b", 1, 20), "unknown trajectory"),
        (ENDED, Called(2.0, "a", 1, 20), "late"),
        (FOUND, Called(3.0, "a", 1, 20), "late"),  # lost with its replica, and placed elsewhere since
        (FOUND, Called(3.0, "a", 1, 20), "late"),
        (PAUSED, Called(2.0, "a", 1, 20), "repeated"),
        (MOVING, Called(2.0, "a", 1, 20), "late"),  # from where it is on its way from
        (ENDED, Ended(2.0, "a", 1, TURN), "late"),
        (FOUND, Ended(3.0, "a", 1, TURN), "late"),
        (BEGUN, Ended(1.0, "b", 1, TURN), "unknown trajectory"),
        (BEGUN_AGAIN, Ended(3.0, "a", 1, TURN), "late"),  # of its first try
        (RETURNED, Returned(3.0, "a", 1, TURN), "late"),
        (BEGUN, Returned(1.0, "a", 1, TURN), "repeated"),
        (PAUSED, Returned(2.0, "a", 1, TURN), "repeated"),
        (ENDED, Returned(2.0, "a", 1, TURN), "late"),
        (BEGUN, Begun(1.0, "a", "p", 100), "repeated"),
        (RETURNED, Begun(3.0, "a", "p", 100, epoch=2), "repeated"),
        (BEGUN, Begun(1.0, "a", "p", 100, epoch=2), "out of order"),  # before the end of its first try
        (ENDED, Begun(2.0, "a", "p", 100), "late"),
        (ENDED, Begun(2.0, "a", "p", 100, epoch=1), "late"),
        (ABORTED, Begun(2.0, "a", "p", 100, epoch=1), "late"),
        (ARRIVED, Moved(3.0, "a", 2), "repeated"),
        (MOVING, Moved(2.0, "a", 1), "late"),
        (BEGUN, Moved(1.0, "a", 1), "repeated"),
        (PAUSED, Paused(2.0, "a", 1, 20), "repeated"),
        (CALLED, Paused(2.0, "a", 1, 20), "repeated"),
        (RESUMED, Paused(3.0, "a", 1, 20), "late"),  # though it may pause while it waits
        (RESUMED, Resumed(3.0, "a", 2), "late"),
        (BEGUN, Resumed(1.0, "a", 2), "repeated"),
        (CALLED, Resumed(2.0, "a", 2), "repeated"),
        (ARRIVED, Sent(3.0, "a", 2, 1), "late"),
        (SENT, Sent(3.0, "a", 2, 1), "late"),
        (BEGUN, Sent(1.0, "a", 3, 0), "out of order"),
        (BEGUN, Sent(1.0, "a", 2, 7), "unknown replica"),
        (BEGUN, Sent(1.0, "b", 1, 0), "unknown trajectory"),
        (BEGUN, Aborted(1.0, "b", 1), "unknown trajectory"),
        (ABORTED, Aborted(2.0, "a", 1), "late"),
        (ENDED, Aborted(2.0, "a", 1), "late"),
        (BEGUN_AGAIN, Aborted(3.0, "a", 1), "late"),
        (BEGUN, ReplicaUp(1.0, 0, 1, 4, 1_000), "repeated"),
        (LOST, ReplicaUp(2.0, 0, 1, 4, 1_000), "late"),
        (FOUND, ReplicaUp(3.0, 0, 1, 4, 1_000), "late"),
        (FOUND, ReplicaDown(3.0, 0), "late"),  # that it was down before
        (LOST, ReplicaDown(2.0, 0), "repeated"),
        (BEGUN, ReplicaDown(1.0, 0, 3), "out of order"),
        (BEGUN, ReplicaDown(1.0, 7), "unknown replica"),
    ],
)
def test_what_does_not_count_changes_nothing(before: Sequence[RolloutEvent], event: RolloutEvent, reason: str) -> None:
    core = core_after(before)
    rollouts = core.placement.rollouts
    there = picture(rollouts)
    assert core.placement.rollouts.accepts(event) == reason
    assert core.apply(event) == [] and core.dropped == {reason: 1}
    assert picture(rollouts) == there


@pytest.mark.parametrize("before", [BEGUN, CALLED, RETURNED, PAUSED, RESUMED, MOVING, SENT, LOST, FOUND])
def test_a_trajectory_can_be_aborted_by_any_epoch_that_it_has_had(before: Sequence[RolloutEvent]) -> None:
    """Its client need not know of the last place."""
    for epoch in range(core_after(before).placement.rollouts.running["a"].epoch + 1):
        core = core_after(before)
        core.apply(Aborted(9.0, "a", epoch))
        rollouts = core.placement.rollouts
        assert not core.dropped and not rollouts.running and not len(rollouts.waiting)
        for replica in rollouts.replicas.values():
            assert (replica.busy, replica.active, replica.tokens, replica.placed, replica.coming) == (0, 0, 0, {}, {})


def test_a_trajectory_that_turns_out_to_be_over_ends_as_if_it_had_called_no_tool() -> None:
    """A live client says after its last turn that it was the last."""
    at_once, later = core_after(BEGUN), core_after(CALLED)
    for core in (at_once, later):
        assert core.apply(Ended(2.0, "a", 1, TURN)) == []
        assert not core.dropped and "a" not in core.placement.rollouts.running
    assert picture(at_once.placement.rollouts) == picture(later.placement.rollouts)


@pytest.mark.parametrize("before", [ENDED, ABORTED])
def test_one_that_is_over_begins_again_with_a_higher_epoch(before: Sequence[RolloutEvent]) -> None:
    assert core_after(before).apply(Begun(2.0, "a", "p", 100, epoch=2)) == [Place("a", 0, epoch=3)]


def test_a_turn_that_was_lost_is_run_again_where_the_replica_comes_up() -> None:
    core = core_after(LOST)
    assert core.apply(ReplicaUp(2.0, 0, 1, 4, 1_000, epoch=1)) == [Place("a", 0, epoch=2)]
    assert core.apply(ReplicaUp(3.0, 0, 1, 4, 1_000, epoch=2)) == [Place("a", 0, epoch=3)]  # nobody saw it go down
    assert core.apply(Called(4.0, "a", 3, 20)) == [Park("a", "keep")]
    assert not core.dropped


def test_a_turn_can_be_over_before_anybody_says_that_its_cache_has_arrived() -> None:
    core = core_after(MOVING)
    assert core.apply(Called(2.0, "a", 2, 20)) == [Park("a", "keep")]
    assert [each.tokens for each in core.placement.rollouts.replicas.values()] == [0, 120]


class Telling:
    """Says what it was asked and taught."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.learnt: list[Trajectory] = []

    def observe(self, history: History) -> Left:
        self.asked.append(len(history.turns))
        return Left(5.0, 6.0)

    def learn(self, done: Trajectory) -> None:
        self.learnt.append(done)


def test_estimators_are_asked_once_a_turn_and_taught_what_has_ended() -> None:
    estimator, beginnings = Telling(), Telling()
    core = Placement(rollout_router("sticky"), estimator, beginnings)
    core.decide(ReplicaUp(0.0, 0, 1, 1, 100))
    for name in "ab":
        core.decide(Begun(0.0, name, "p", 7))
    core.decide(Called(1.0, "a", 1, 3))
    core.decide(Returned(2.0, "a", 1, Turn(3, "ls", "ok", 2)))
    assert core.rollouts.running["a"].left == Left(5.0, 6.0)
    core.decide(Ended(3.0, "a", 2, Turn(4)))
    core.decide(Aborted(3.0, "b", 1))
    assert (beginnings.asked, estimator.asked) == ([0, 0], [1])
    whole = Trajectory("a", "p", "p", (Turn(3, "ls", "ok", 2), Turn(4)), 7)
    assert estimator.learnt == beginnings.learnt == [whole]


def test_beginnings_lean_on_the_prompt_as_it_becomes_known() -> None:
    known = ByPrompt()
    assert known.observe(History("x", "p")) == UNKNOWN
    for number in range(40):
        known.learn(Trajectory(str(number), "pq"[number % 2], "t", (Turn(900 if number % 2 else 100),)))
    short, long, other = (known.observe(History("x", prompt)) for prompt in "pqr")
    assert short.mean == pytest.approx((20 * 100 + 4 * 500) / 24)
    assert long.mean == pytest.approx((20 * 900 + 4 * 500) / 24)
    assert other == Left(500.0, 900.0)
    assert long.p90 / long.mean == pytest.approx(900 / 500)


@settled(100)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdef")), max_size=60))
def test_a_line_is_a_sorted_list(steps: list[tuple[int, str]]) -> None:
    """Against the plainest reading: whoever has the lowest rank, then came first."""
    line: Line[tuple[int, str]] = Line(lambda trajectory: trajectory[0])
    plain: dict[str, tuple[int, int]] = {}
    for joined, (rank, name) in enumerate(steps):
        if rank == 3:
            line.discard(name)
            plain.pop(name, None)
        else:
            line.add(name, (rank, name))
            plain.setdefault(name, (rank, joined))
        first = line.first()
        assert (first and first[1]) == (min(plain, key=plain.__getitem__) if plain else None)
        assert len(line) == len(plain) and [name for _, name in line] == list(plain)


@pytest.mark.parametrize("over", [Called(2.0, "a", 1, 20), Ended(2.0, "a", 1, TURN)])
def test_a_turn_that_ended_while_its_replica_went_down_counts_once(over: Called | Ended) -> None:
    """Its last tokens were on their way when the replica was given up. It must not be run again."""
    core = core_after(LOST)
    rollouts = core.placement.rollouts
    assert core.apply(over) == []
    assert not len(rollouts.waiting) and not core.dropped
    assert ("a" in rollouts.running) == isinstance(over, Called)
    assert core.apply(over) == [] and core.dropped.total() == 1
    assert not [each for each in core.apply(ReplicaUp(3.0, 0, 1, 4, 1_000, 1)) if isinstance(each, Place)]
