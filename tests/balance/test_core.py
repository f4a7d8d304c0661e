"""The decision core over random event streams: nobody lost or placed twice, loads as counted, replays identical."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.beginnings import ByPrompt
from steelyard.balance.commands import Park, Place, RolloutCommand
from steelyard.balance.core import RolloutCore
from steelyard.balance.estimate import UNKNOWN, ByTurn, Estimator, History, Left, Oracle, PaperTrie, SuffixBackoff
from steelyard.balance.events import (
    Aborted,
    Begun,
    Called,
    Ended,
    Moved,
    ReplicaDown,
    ReplicaUp,
    Returned,
    RolloutEvent,
    Sent,
)
from steelyard.balance.line import Line
from steelyard.balance.log import Told, read_log, replay, to_line, write_log
from steelyard.balance.rollouts import Rollouts, Running
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
acts = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), min_size=20, max_size=70)


def core_of(name: str, everyone: Iterable[Trajectory], estimator: Callable[[], Estimator] = ByTurn) -> RolloutCore:
    everyone = list(everyone)
    router = rollout_router(name, speeds=SPEEDS)
    if name in ORACLES:
        return RolloutCore(router, Oracle(everyone), Oracle(everyone))
    return RolloutCore(router, estimator())


class World:
    """Carries commands out, makes things happen, and knows by itself who should be where."""

    def __init__(self, core: RolloutCore, everyone: list[Trajectory], fleet: list[tuple[int, int, int]]) -> None:
        self.core = core
        self.to_begin = everyone[::-1]
        self.fleet = fleet
        self.up: set[int] = set()
        self.plan = {each.id: each for each in everyone}
        self.turn: dict[str, int] = {}  # of all under way
        self.at: dict[str, int] = {}  # those generating or on their way to it: the replica
        self.moving: set[str] = set()
        self.in_tool: set[str] = set()
        self.cached: dict[str, int] = {}
        self.ended: list[str] = []
        self.aborted: list[str] = []
        self.log: list[Told] = []
        self.clock = 0.0

    @property
    def wanting(self) -> set[str]:
        return self.turn.keys() - self.at.keys() - self.in_tool

    def tell(self, event: RolloutEvent) -> None:
        commands = self.core.decide(event)
        self.log += [("rollout", entry) for entry in (event, *commands)]
        for command in commands:
            self.carry_out(command, event)
        self.check()

    def carry_out(self, command: RolloutCommand, event: RolloutEvent) -> None:
        name = command.trajectory
        if isinstance(command, Park):
            assert isinstance(event, Called) and event.trajectory == name
            if command.cache == "drop":
                self.cached.pop(name, None)
            return
        assert isinstance(command, Place)
        assert command.replica in self.up, "placed on a replica that is down"
        assert name in self.wanting, "placed without wanting a turn"
        assert command.source == self.cached.get(name)
        self.at[name] = command.replica
        if command.source not in (None, command.replica) and command.cache == "keep":
            self.moving.add(name)
        else:
            self.cached[name] = command.replica

    def check(self) -> None:
        rollouts = self.core.rollouts
        assert rollouts.running.keys() == self.turn.keys()
        assert rollouts.replicas.keys() == self.up
        assert {who.name for who in rollouts.waiting} == self.wanting
        assert len(rollouts.waiting) == len(self.wanting)
        for name, who in rollouts.running.items():
            assert who.replica == self.cached.get(name)
            assert who.target == (self.at[name] if name in self.moving else None)
            assert who.in_tool == (name in self.in_tool)
        for number, replica in rollouts.replicas.items():
            placed = [who for who in rollouts.running.values() if who.replica == number]
            coming = [who for who in rollouts.running.values() if who.target == number]
            busy = [who for who in placed if who.doing == "generating"] + coming
            assert replica.placed == {who.name: who for who in placed}
            assert replica.coming == {who.name: who for who in coming}
            assert replica.busy == len(busy) == sum(at == number for at in self.at.values())
            assert replica.active == sum(who.context for who in busy)
            assert replica.tokens == sum(
                who.context for who in [*placed, *coming] if who in coming or who.cache == "keep"
            )
            if replica.busy == 0:
                assert not self.wanting, f"replica {number} is idle while {self.wanting} wait"

    def begin(self, _: int) -> None:
        if self.to_begin:
            each = self.to_begin.pop()
            self.turn[each.id] = 0
            self.tell(Begun(self.clock, each.id, each.prompt, each.prompt_tokens))

    def stop(self, pick: int) -> None:
        """Someone's turn is over, as it is now and then for one that was thought lost."""
        some = sorted(self.at) if pick % 5 or not self.wanting else sorted(self.wanting)
        if not some:
            return
        name = some[pick % len(some)]
        if name in self.moving:
            self.moving.remove(name)
            self.cached[name] = self.at[name]
        self.at.pop(name, None)
        turn = self.plan[name].turns[self.turn[name]]
        if self.turn[name] == len(self.plan[name].turns) - 1:
            del self.turn[name]
            self.cached.pop(name, None)
            self.ended.append(name)
            self.tell(Ended(self.clock, name, turn))
        else:
            self.in_tool.add(name)
            self.tell(Called(self.clock, name, turn.generated))

    def come_back(self, pick: int) -> None:
        if self.in_tool:
            name = sorted(self.in_tool)[pick % len(self.in_tool)]
            self.in_tool.remove(name)
            turn = self.plan[name].turns[self.turn[name]]
            self.turn[name] += 1
            self.tell(Returned(self.clock, name, turn))

    def arrive(self, pick: int) -> None:
        if self.moving:
            name = sorted(self.moving)[pick % len(self.moving)]
            self.moving.remove(name)
            self.cached[name] = self.at[name]
            self.tell(Moved(self.clock, name))

    def abort(self, pick: int) -> None:
        if self.turn and pick % 3 == 0:
            name = sorted(self.turn)[pick % len(self.turn)]
            del self.turn[name]
            self.forget(name)
            self.aborted.append(name)
            self.tell(Aborted(self.clock, name))

    def forget(self, name: str) -> None:
        self.at.pop(name, None)
        self.cached.pop(name, None)
        self.moving.discard(name)
        self.in_tool.discard(name)

    def lose(self, number: int) -> None:
        self.up.discard(number)
        for name in [name for name, at in self.at.items() if at == number]:
            del self.at[name]
            self.moving.discard(name)
        for name in [name for name, at in self.cached.items() if at == number]:
            del self.cached[name]

    def go_up(self, pick: int) -> None:
        number = pick % len(self.fleet)
        self.lose(number)  # if it was up, it has started anew
        self.up.add(number)
        self.tell(ReplicaUp(self.clock, number, *self.fleet[number]))

    def go_down(self, pick: int) -> None:
        if self.up and pick % 3:
            number = sorted(self.up)[pick % len(self.up)]
            self.lose(number)
            self.tell(ReplicaDown(self.clock, number))

    def play(self, steps: list[tuple[int, int]]) -> None:
        """Begin with every other replica and the first trajectories, then let anything happen."""
        for number in range(0, len(self.fleet), 2):
            self.go_up(number)
        for _ in range(3):
            self.begin(0)
        does = [self.begin, self.stop, self.stop, self.stop, self.come_back, self.come_back, self.arrive, self.abort]
        does += [self.go_up, self.go_down]
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
            before = len(self.log)
            self.begin(0)
            self.come_back(0)
            self.stop(1)
            assert len(self.log) > before, f"stuck: {self.wanting} wait"


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
    for replica in world.core.rollouts.replicas.values():
        assert (replica.busy, replica.active, replica.tokens, replica.placed, replica.coming) == (0, 0, 0, {}, {})
    assert list(replay(world.log, {"rollout": core_of(name, everyone)})) == world.log


@settled(25)
@given(trajectories, replicas, acts, st.sampled_from([SuffixBackoff, PaperTrie]))
def test_the_log_is_written_again_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory,
    everyone: list[Trajectory],
    fleet: list[tuple[int, int, int]],
    steps: list[tuple[int, int]],
    estimator: Callable[[], Estimator],
) -> None:
    folder = tmp_path_factory.mktemp("log")
    world = World(core_of("cost-aware", everyone, estimator), everyone, fleet)
    world.play(steps)
    world.finish()
    write_log(folder / "first", world.log)
    read = read_log(folder / "first")
    assert read == world.log
    write_log(folder / "second", replay(read, {"rollout": core_of("cost-aware", everyone, estimator)}))
    assert (folder / "first").read_bytes() == (folder / "second").read_bytes()


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"at": 1.0}', "log:1: kind is missing"),
        ('{"kind": "Begin", "at": 1.0}', "log:1: kind is 'Begin'; did you mean 'Begun'"),
        ('{"kind": "Moved", "at": 1.0, "trajectory": "a", "to": 3}', "log:1: Moved has no 'to'"),
        ('{"kind": "Moved", "at": "now", "trajectory": "a"}', "log:1: Moved: at: .*found 'now'"),
        ('{"kind": "Moved", "at": 1.0}', "log:1: Moved: trajectory: .*required"),
        ('{"kind": "Ended", "at": 1, "trajectory": "a", "turn": {"generated": 1.5}}', "turn.generated"),
    ],
)
def test_a_bad_log_says_where(tmp_path: Path, line: str, wrong: str) -> None:
    path = tmp_path / "log"
    path.write_text(line + "\n")
    with pytest.raises(UserError, match=wrong):
        read_log(path)


def test_a_line_is_kind_and_fields() -> None:
    assert to_line("rollout", Returned(1.5, "a", Turn(3, "ls", "ok", 7))) == (
        '{"kind":"Returned","at":1.5,"trajectory":"a",'
        '"turn":{"generated":3,"tool":"ls","outcome":"ok","returned":7,"latency":null}}'
    )


# -- by hand ----------------------------------------------------------------------------------------------------------


def on_its_way(replicas: int) -> tuple[Rollouts, Running]:
    """One whose second turn is on replica 1, and its cache not yet there."""
    rollouts = Rollouts()
    for number in range(replicas):
        rollouts.apply(ReplicaUp(0.0, number, 1, 4, 1_000))
    who = rollouts.apply(Begun(0.0, "a", "p", 100))
    assert who is not None
    rollouts.place(who, 0)
    rollouts.apply(Called(1.0, "a", 20))
    rollouts.apply(Returned(2.0, "a", Turn(20, "ls", "ok", 30)))
    rollouts.place(who, 1)
    return rollouts, who


def test_a_move_holds_both_places_until_it_has_arrived() -> None:
    rollouts = Rollouts()
    for number in (0, 1):
        rollouts.apply(ReplicaUp(0.0, number, 1, 4, 1_000))
    who = rollouts.apply(Begun(0.0, "a", "p", 100))
    assert who is not None
    rollouts.place(who, 0)
    rollouts.apply(Called(1.0, "a", 20))
    assert (rollouts.replicas[0].busy, rollouts.replicas[0].tokens) == (0, 120)
    rollouts.apply(Returned(2.0, "a", Turn(20, "ls", "ok", 30)))
    assert rollouts.place(who, 1) == 0
    assert (rollouts.replicas[0].tokens, rollouts.replicas[1].tokens) == (150, 150)
    assert (rollouts.replicas[0].busy, rollouts.replicas[1].busy) == (0, 1)
    rollouts.apply(Moved(3.0, "a"))
    assert (rollouts.replicas[0].tokens, rollouts.replicas[1].tokens) == (0, 150)
    assert (who.replica, who.target, who.doing) == (1, None, "generating")


def test_one_that_is_sent_on_before_it_has_arrived_takes_up_no_place_on_the_way() -> None:
    rollouts, _ = on_its_way(3)
    rollouts.apply(Sent(2.5, "a", 2))
    assert (rollouts.replicas[1].busy, rollouts.replicas[1].tokens, rollouts.replicas[1].coming) == (0, 0, {})
    rollouts.apply(Moved(3.0, "a"))
    assert [each.tokens for each in rollouts.replicas.values()] == [0, 0, 150]


def test_one_that_is_sent_while_it_waits_is_placed_there() -> None:
    core = RolloutCore(rollout_router("sticky"), ByTurn())
    core.decide(ReplicaUp(0.0, 0, 1, 1, 1_000))
    core.decide(Begun(0.0, "a", "p", 100))
    who = core.rollouts.apply(Begun(0.0, "b", "p", 100))  # in line
    core.rollouts.apply(ReplicaUp(1.0, 1, 1, 1, 1_000))
    assert who is not None and who.doing == "waiting"
    assert core.decide(Sent(1.0, "b", 1)) == [Place("b", 1)]
    assert (who.replica, who.doing) == (1, "generating")


def test_a_target_lost_on_the_way_leaves_the_cache_where_it_was() -> None:
    rollouts, who = on_its_way(2)
    rollouts.apply(ReplicaDown(2.5, 1))
    assert (who.replica, who.target, who.doing, "a" in rollouts.waiting) == (0, None, "waiting", True)
    assert rollouts.place(who, 0) == 0


def test_offloaded_and_dropped_caches_take_no_room() -> None:
    rollouts = Rollouts()
    rollouts.apply(ReplicaUp(0.0, 0, 1, 4, 1_000))
    for name in "abc":
        who = rollouts.apply(Begun(0.0, name, "p", 100))
        assert who is not None
        rollouts.place(who, 0)
        rollouts.apply(Called(1.0, name, 10))
        rollouts.park(who, {"a": "keep", "b": "offload", "c": "drop"}[name])  # type: ignore[arg-type]
    assert rollouts.replicas[0].tokens == 110
    assert [who.replica for who in rollouts.running.values()] == [0, 0, None]


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
    core = RolloutCore(rollout_router("sticky"), estimator, beginnings)
    core.decide(ReplicaUp(0.0, 0, 1, 1, 100))
    for name in "ab":
        core.decide(Begun(0.0, name, "p", 7))
    core.decide(Called(1.0, "a", 3))
    core.decide(Returned(2.0, "a", Turn(3, "ls", "ok", 2)))
    assert core.rollouts.running["a"].left == Left(5.0, 6.0)
    core.decide(Ended(3.0, "a", Turn(4)))
    core.decide(Aborted(3.0, "b"))
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
    line: Line[tuple[int, str]] = Line(lambda who: who[0])
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
