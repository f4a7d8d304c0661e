"""`python tests/balance/decisions.py`: makes many decisions and prints a digest of each kind, as JSON.

With `product` behind it, it prints a digest of plain products. `test_any_cpu.py` runs it as different CPUs would: every
digest has to be the same.
"""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from random import Random

import numpy as np

from steelyard.balance.commands import Place
from steelyard.balance.estimate import ESTIMATORS, Estimator, History, Oracle
from steelyard.balance.events import Begun, Called, Ended, ReplicaUp, Returned, RolloutEvent
from steelyard.balance.placement import Placement
from steelyard.balance.plan import (
    Measured,
    Plan,
    Planner,
    PlannerState,
    ReplicaModel,
    Search,
    Searching,
    Simulated,
    TrainOption,
    World,
    libra,
)
from steelyard.balance.rollouts import Replica
from steelyard.balance.route import BucketSpeed
from steelyard.balance.route.rollout import rollout_router
from steelyard.balance.route.rollout.demand import LENGTHS, Demand, DemandModel
from steelyard.balance.route.rollout.finish import FinishPredictor
from steelyard.records import Ints, Trajectory, Turn

TOOLS = ("look", "edit", "test", "search", "shell")
SPEEDS = {
    tp: BucketSpeed(((1, 0.02 / tp + 0.004), (64, 0.05 / tp + 0.004)), 1e-4 / tp, 1e-5, read=1e-8 / tp, reach=0.01)
    for tp in (1, 2, 4)
}


def trajectories(count: int, seed: int = 1) -> list[Trajectory]:
    """Of several kinds of agent; drawn by whole numbers, so the same everywhere."""
    random = Random(seed)
    made = []
    for number in range(count):
        patience = random.choice((2, 5, 12, 30))
        turns = tuple(
            Turn(
                random.randrange(20, 200) * (1 + patience // 4),
                random.choice(TOOLS),
                random.choice(("ok", "ok", "error", "timeout")),
                random.randrange(0, 8000) // random.choice((1, 10, 100)),
                random.randrange(1, 4000) / 256,
            )
            for _ in range(random.randrange(1, 2 * patience))
        )
        made.append(Trajectory(f"t{number}", f"p{number // 4}", f"p{number // 4}", turns, random.randrange(50, 900)))
    return made


def estimates(estimator: Estimator, asked: list[Trajectory]) -> Iterator[object]:
    """What is predicted at every tool return, before the trajectory is learnt."""
    for each in asked:
        history = History.start(each)
        for turn in each.turns[:-1]:
            history.add(turn)
            left = estimator.observe(history)
            yield left.mean, left.p90
        estimator.learn(each)


def placements(router: str, estimator: str, asked: list[Trajectory]) -> Iterator[object]:
    """All commands of a rollout on seven replicas, in a small virtual time of its own."""
    core = Placement(rollout_router(router, speeds=SPEEDS), ESTIMATORS[estimator](Oracle(asked)))
    for number, tp in enumerate((1, 1, 1, 1, 2, 2, 4)):
        core.decide(ReplicaUp(0.0, number, tp, 6, 60_000))
    told: list[tuple[float, int, RolloutEvent]] = []
    rest = {each.id: list(each.turns) for each in asked}
    for number, each in enumerate(asked):
        heapq.heappush(told, (number / 4, number, Begun(number / 4, each.id, each.prompt, each.prompt_tokens)))
    count = len(told)
    while told:
        at, _, event = heapq.heappop(told)
        assert core.rollouts.accepts(event) is None
        commands = core.decide(event)
        yield commands
        follow: list[RolloutEvent] = []
        if isinstance(event, Called):
            turn = rest[event.trajectory].pop(0)
            follow.append(Returned(at + (turn.latency or 0.0), event.trajectory, event.epoch, turn))
        for command in commands:
            if isinstance(command, Place):
                name, (turn, *after) = command.trajectory, rest[command.trajectory]
                over = at + turn.generated / 64, name, command.epoch
                follow.append(Called(*over, turn.generated) if after else Ended(*over, turn))
        for what in follow:
            count += 1
            heapq.heappush(told, (what.at, count, what))


def rises(count: int) -> Iterator[object]:
    """What the cost-aware router weighs replicas by: it rarely turns on an ulp, so its figures are looked at too."""
    outlook = FinishPredictor(DemandModel())
    for number, tp in enumerate((1, 1, 2, 4)):
        replica = Replica(number, tp, 32, 200_000)
        outlook.up(replica, SPEEDS[tp])
        outlook.set_load(replica)
    random = Random(5)
    for number in range(count):
        likely = sorted(random.randrange(1, 3000) / random.randrange(1, 30) for _ in range(LENGTHS))
        trajectory = Demand(likely, 1 / random.randrange(50, 90), random.random(), random.randrange(900), 70)
        yield outlook.rises(trajectory, None, number / 7).tolist()
        outlook.count(str(number), random.randrange(4), trajectory)


def plans(make: Callable[[World], Planner], gpus: int, batches: Sequence[Measured]) -> Iterator[object]:
    """What a planner says step after step, with other lengths each time."""
    world = World(
        gpus,
        "overlapped",
        {tp: replica(tp) for tp in (1, 2, 4, 8)},
        [TrainOption(f"dp{n}", n, dp=n, budget=1 << 20) for n in (1, 2, 4, 8, 16, 32) if n < gpus],
        train_seconds,
    )
    planner = make(world)
    in_force: Plan | None = None
    for step, measured in enumerate(batches):
        state = PlannerState(step, measured, in_force, 31.0, 40.0 + step, seen=len(measured))
        plan = planner.plan(state)
        yield plan
        in_force = plan or in_force


def replica(tp: int) -> ReplicaModel:
    rows = tuple((n, 0.016 / tp + 0.002 + n * 1e-4 / tp) for n in (1, 8, 64, 256))
    return ReplicaModel(BucketSpeed(rows, prefill=1e-4 / tp, move=1e-6, read=1e-7 / tp), 64, 100_000 * tp)


def train_seconds(option: TrainOption, lengths: Ints) -> float:
    return int(lengths.sum()) / 512 / option.gpus + 1.0


def simulated_step(plan: Plan, state: PlannerState) -> float:
    """Another opinion than the model's, the same everywhere."""
    return plan.step * (1 + (plan.rollout_gpus * 7 % 5) / 32)


def digest(decisions: Iterator[object]) -> str:
    found = sha256()
    for each in decisions:
        found.update(repr(each).encode())
    return found.hexdigest()


def main() -> None:
    asked = trajectories(260)
    found = {f"estimator {name}": digest(estimates(make(Oracle(asked)), asked)) for name, make in ESTIMATORS.items()}
    routers = ("cost-aware", "suffix"), ("cost-aware", "noisy"), ("heddle", "suffix"), ("c-mlfq", "trie")
    for router, estimator in routers:
        found[f"router {router}, {estimator}"] = digest(placements(router, estimator, asked[:160]))
    found["rises"] = digest(rises(200))
    planners: dict[str, Callable[[World], Planner]] = {
        "search": lambda world: Searching(Search(world)),
        "by any length": lambda world: Searching(Search(replace(world, by_length=False, sticky=False))),
        "libra": lambda world: Searching(libra(world)),
        "libra as published": lambda world: Searching(libra(world, published=True)),
        "simulated": lambda world: Simulated(world, simulated_step),
    }
    batches = [Measured.of(trajectories(120 + 40 * step, seed=step), 4) for step in range(4)]
    for name, plan in planners.items():
        steps = batches[:1] if name == "libra" else batches  # whose search takes longest by far
        found[f"planner {name}"] = digest(plans(plan, 12, steps))
    print(json.dumps(found))


def plain_product() -> str:
    """Products and powers as they come: they differ between CPUs, which shows that `test_any_cpu.py` can see it."""
    square = np.array([(7919 * number % 1000) / 997 for number in range(64 * 64)]).reshape(64, 64)
    return sha256((square @ square).tobytes() + np.exp(-square).tobytes()).hexdigest()


if __name__ == "__main__":
    if sys.argv[1:] == ["product"]:
        print(plain_product())
    else:
        main()
