"""Every number that a scenario may have, at the limits of its range and beyond: it runs, or is refused by its key.

Fields come from the schemas, so that a new one is looked at without being listed here.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, nan
from typing import Any

import pytest

from steelyard import simulate
from steelyard.errors import UserError
from steelyard.posttrain.run import drive
from steelyard.scenario import posttrain_from_dict, scenario_from_dict
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.scenario import Scenario
from support.numeric_fields import POSTTRAIN, SERVING, NumericField, numeric_fields

HOSTILE: tuple[Any, ...] = (-1, 1e308, 10**400, inf, nan, True, "x", [])
SIZES = {  # that make a run as long as they say; at their limit these are accepted, and not run here
    *("WorkloadSpec.requests", "MixSpec.requests", "ClosedArrivals.users", "TrajectorySpec.tasks"),
    *("PoolSpec.replicas", "ShortFleet.replicas", "PoolSpec.dp", "ShortFleet.dp", "BucketSpec.replicas"),
    *("AutoscaleSpec.max", "AutoscaleSpec.min", "PosttrainScenario.steps", "BudgetSpec.turns"),
}
ROUNDS = {"rounds", "branches", "turns"}  # of which each is a request
UNUSED = {"TraceArrivals", "TraceSpec", "ReconfigureSpec"}  # that need a file, or batches that take turns
SERVING_FIELDS = list(numeric_fields(Scenario.model_json_schema(), SERVING))
POSTTRAIN_FIELDS = [
    field
    for field in numeric_fields(PosttrainScenario.model_json_schema(), POSTTRAIN)
    if field.keys[0] not in ("engine", "model") and "file" not in field.put(1)["trajectories"]
]


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail if it takes longer."""

    def give_up(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_there_are_fields() -> None:
    assert len(SERVING_FIELDS) > 250 and len(POSTTRAIN_FIELDS) > 80


def test_every_number_has_a_finite_range() -> None:
    for field in SERVING_FIELDS + POSTTRAIN_FIELDS:
        assert field.least is not None and field.most is not None, field
        assert -inf < field.least < field.most < inf, field


def values(field: NumericField) -> list[Any]:
    assert field.least is not None and field.most is not None
    beyond = 2 * field.most + 1, field.least - 1
    found = [field.least, field.most, *beyond, 3, 400, field.usual]
    return [int(each) if field.kind == "integer" and isinstance(each, float) else each for each in found]


def check(field: NumericField, load: Callable[[Any], Any], run: Callable[[Any], object]) -> None:
    worked = False
    for value in (*values(field), *HOSTILE):
        if worked and value in (3, 400):
            continue
        is_size = value == field.most and (f"{field.owner}.{field.keys[-1]}" in SIZES or ROUNDS & {*field.keys})
        with within(30):
            try:
                scenario = load(field.put(value))
                if not is_size:
                    run(scenario)
                worked = True
            except UserError as error:
                message = str(error)
                assert any(key in message for key in field.keys[-2:]) or field.keys[0] in message, message
                assert len(message) < 1000
    assert worked or field.owner in UNUSED, f"no value of {field} is accepted"


@pytest.mark.parametrize("field", SERVING_FIELDS, ids=str)
def test_serving_runs_or_refuses_any_number(field: NumericField) -> None:
    check(field, scenario_from_dict, simulate)


@pytest.mark.parametrize("field", POSTTRAIN_FIELDS, ids=str)
def test_post_training_runs_or_refuses_any_number(field: NumericField) -> None:
    check(field, posttrain_from_dict, drive)
