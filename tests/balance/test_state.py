"""State of the core: in its objects, never in modules, and in a form that can be saved in the middle of a run."""

from __future__ import annotations

import ast
import io
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from copy import deepcopy
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest

import steelyard
from steelyard.balance.beginnings import ByPrompt
from steelyard.balance.estimate import ESTIMATORS, Estimator, History, Oracle, SuffixBackoff
from steelyard.balance.estimate.sparing import Sparing
from steelyard.balance.plan import (
    Measured,
    OneAtATime,
    Plan,
    Planner,
    PlannerState,
    ProportionalPlanner,
    Search,
    Searching,
    Simulated,
    Static,
    TrainOption,
    World,
    libra,
    oracle,
)
from steelyard.records import Trajectory

SOURCES = Path(steelyard.__file__).parent
MODULES = [
    ".".join(path.with_suffix("").relative_to(SOURCES.parent).parts).removesuffix(".__init__")
    for path in sorted((SOURCES / "balance").rglob("*.py"))
]
DECISIONS = run_path(str(Path(__file__).with_name("decisions.py")))
trajectories: Callable[..., list[Trajectory]] = DECISIONS["trajectories"]


def containers(module: str) -> Iterator[tuple[str, object]]:
    """What a module has that could be changed, as it is now."""
    for name, value in vars(import_module(module)).items():
        if isinstance(value, np.ndarray):
            yield f"{module}.{name}", value.tobytes()
        elif isinstance(value, dict | list | set | bytearray | deque) and not name.startswith("__"):
            yield f"{module}.{name}", repr(value)


def test_decisions_change_no_module() -> None:
    before = {name: value for module in MODULES for name, value in containers(module)}
    with redirect_stdout(io.StringIO()):
        DECISIONS["main"]()
    assert {name: value for module in MODULES for name, value in containers(module)} == before


OF_CLASSES = "steelyard.balance.encoding"  # keeps what annotations say, which nothing changes


@pytest.mark.parametrize("module", [module for module in MODULES if module != OF_CLASSES])
def test_no_function_has_a_cache(module: str) -> None:
    """It would outlive the object that it is for. A cache inside a function, for one call, is fine."""
    tree = ast.parse(Path(import_module(module).__file__ or "").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert not [each for each in node.decorator_list if "cache" in ast.unparse(each)], node.name
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            assert "cache(" not in ast.unparse(statement.value)


def asked(estimator: Estimator, some: list[Trajectory]) -> list[object]:
    """What an estimator says of trajectories, each of which it learns when it has ended."""
    said: list[object] = []
    for each in some:
        history = History.start(each)
        said += [estimator.observe(history)] if isinstance(estimator, ByPrompt) else []
        for turn in each.turns[:-1]:
            history.add(turn)
            said.append(estimator.observe(history))
        estimator.learn(each)
    return said


KNOWN = trajectories(120, seed=7)
EVERY: dict[str, Callable[[], Estimator]] = {
    **{name: lambda make=make: make(Oracle(KNOWN)) for name, make in ESTIMATORS.items()},  # type: ignore[misc]
    "sparing": lambda: Sparing(SuffixBackoff(), 3),
    "by prompt": ByPrompt,
}


@pytest.mark.parametrize("name", EVERY)
def test_an_estimator_goes_on_from_where_it_was_saved(name: str) -> None:
    through, saved = EVERY[name](), EVERY[name]()
    for first, last in pairwise((0, 5, 40, 41, 120)):
        part = KNOWN[first:last]
        assert asked(through, part) == asked(saved, part)
        saved = pickle.loads(pickle.dumps(saved))


def mean_context(state: PlannerState) -> Measured:
    return state.measured


PLANNERS: dict[str, Callable[[World], Planner]] = {
    "static": lambda world: Static(Searching(Search(world))),
    "search": lambda world: Searching(Search(world)),
    "libra": lambda world: Searching(libra(world)),
    "libra as published": lambda world: Searching(libra(world, published=True)),
    "proportional": ProportionalPlanner,
    "one at a time": OneAtATime,
    "simulated": lambda world: Simulated(world, told),
    "simulated for longer": lambda world: Simulated(world, told, told_longer),
    "oracle": lambda world: oracle(Simulated(world, told), mean_context),
}


def told(plan: Plan, state: PlannerState) -> float:
    """Another opinion than the model's."""
    return plan.step * (1 + (plan.rollout_gpus * 7 % 5) / 32)


def told_longer(plan: Plan, state: PlannerState) -> float:
    return told(plan, state) + plan.rollout_gpus % 3


def train_seconds(option: TrainOption, lengths: np.ndarray) -> float:
    return int(lengths.sum()) / 512 / option.gpus + 1.0


def small_world() -> World:
    options = [TrainOption(f"dp{n}", n, dp=n, budget=1 << 20) for n in (1, 2, 4) if n < 8]
    return World(8, "overlapped", {tp: DECISIONS["replica"](tp) for tp in (1, 2)}, options, train_seconds)


@pytest.mark.parametrize(
    "copied", [lambda planner: pickle.loads(pickle.dumps(planner)), deepcopy], ids=["saved", "copied"]
)
@pytest.mark.parametrize("name", PLANNERS)
def test_a_planner_goes_on_from_where_it_was_saved(name: str, copied: Callable[[Planner], Planner]) -> None:
    through, saved = PLANNERS[name](small_world()), PLANNERS[name](small_world())
    plan: Plan | None = None
    for step in range(2 if name == "libra" else 7):
        measured = Measured.of(trajectories(16 if name == "libra" else 24 + 8 * step, seed=step), 4)
        state = PlannerState(
            step, measured, plan, 30.0 - 4 * step, 20.0 + 5 * step, seen=len(measured), took=40.0 + 9 * step
        )
        then = through.plan(state)
        assert saved.plan(state) == then
        saved = copied(saved)
        plan = then or plan
