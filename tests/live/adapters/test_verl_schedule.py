"""verl's dynamic schedule, in a model of its trainer's loop: rates and times are given, so the best cycle is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from steelyard.live.adapters.verl_schedule import CycleSpeeds, HybridSchedule, ScheduleContext


@dataclass
class Context:
    """As verl's ``DynamicScheduleContext``."""

    required_samples: int
    trigger_parameter_sync_step: int
    total_generated_samples: int = 0
    expected_samples: int = 0
    buffer_samples: int = 0
    step_wait_times: list[float] = field(default_factory=list)
    step_wait_samples: list[int] = field(default_factory=list)
    only_hybrid: bool = False
    last_activate_duration_s: float = 0.0
    last_deactivate_duration_s: float = 0.0
    step_required_samples: int = field(init=False)

    def __post_init__(self) -> None:
        self.step_required_samples = self.required_samples * self.trigger_parameter_sync_step


class Policy(Protocol):
    """What verl's trainer calls."""

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: Any) -> bool: ...
    def deactivate_wait_samples(self, ctx: Any) -> int: ...
    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: Any) -> bool: ...
    def update_after_step(self, global_steps: int, ctx: Any) -> None: ...


@dataclass
class Loop:
    """verl's trainer between weight syncs. Samples are a fluid: standalone replicas make ``rate`` a second, and all
    together ``speedup`` times as many."""

    rate: float
    training: float  # seconds of all training steps of a cycle
    speedup: float = 2.0
    switch: float = 8.0  # seconds to activate and to deactivate
    required: int = 64
    steps: int = 4  # training steps of a cycle
    now: float = 0.0
    made: float = 0.0
    taken: int = 0
    active: bool = False
    activations: int = 0

    def run(self, policy: Policy, cycles: int) -> list[float]:
        """Seconds of each cycle, in verl's order of calls."""
        ctx = Context(self.required, self.steps)
        found = []
        for cycle in range(cycles):
            begun = self.now
            ctx.step_wait_times, ctx.step_wait_samples = [], []
            for _ in range(self.steps):
                self._train(policy, ctx, cycle)
            ctx.total_generated_samples = int(self.made)
            ctx.expected_samples = self.required * self.steps * (cycle + 1)
            if policy.should_activate_after_step(cycle, self.active, ctx):
                self._pass(self.switch / 2)
                self.active = True
                self.activations += 1
                ctx.last_activate_duration_s += self.switch / 2
            policy.update_after_step(cycle, ctx)
            ctx.last_activate_duration_s = ctx.last_deactivate_duration_s = 0.0
            found.append(self.now - begun)
        return found

    def _train(self, policy: Policy, ctx: Context, cycle: int) -> None:
        if policy.should_deactivate(cycle, self.active, ctx):
            self._until(policy.deactivate_wait_samples(ctx))
            self.active = False
            self._pass(self.switch / 2)
            ctx.last_deactivate_duration_s += self.switch / 2
        missing = max(0, self.required - int(self.made - self.taken))
        begun = self.now
        self._until(self.required)
        ctx.step_wait_times.append(self.now - begun)
        ctx.step_wait_samples.append(missing)
        self.taken += self.required
        self._pass(self.training / self.steps)

    def _until(self, samples: int) -> None:
        rate = self.rate * (self.speedup if self.active else 1.0)
        self._pass(max(0.0, samples - (self.made - self.taken)) / rate)

    def _pass(self, seconds: float) -> None:
        self.made += seconds * self.rate * (self.speedup if self.active else 1.0)
        self.now += seconds


class Fixed:
    """Hybrid replicas always, for so many samples; or never."""

    def __init__(self, samples: int | None) -> None:
        self._samples = samples

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: ScheduleContext) -> bool:
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: ScheduleContext) -> int:
        return self._samples or 0

    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: ScheduleContext) -> bool:
        return self._samples is not None

    def update_after_step(self, global_steps: int, ctx: ScheduleContext) -> None:
        pass


def mean_of_late(seconds: list[float]) -> float:
    return sum(seconds[-10:]) / 10


def best_fixed(loop: Callable[[], Loop]) -> float:
    """The shortest cycle of all fixed numbers of samples, and of no hybrid replicas."""
    choices = [None, *range(0, 257, 8)]
    return min(mean_of_late(loop().run(Fixed(samples), 30)) for samples in choices)


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0, 3.0, 6.0])
@pytest.mark.parametrize("training", [20.0, 80.0])
@pytest.mark.parametrize("steps", [1, 4])
def test_cycles_are_about_as_short_as_with_the_best_fixed_choice(rate: float, training: float, steps: int) -> None:
    def loop() -> Loop:
        return Loop(rate, training, steps=steps, required=256 // steps)

    ours = loop()
    clock = HybridSchedule(speedup=2.0, clock=lambda: ours.now)
    assert mean_of_late(ours.run(clock, 30)) <= 1.05 * best_fixed(loop)


def test_hybrid_replicas_are_left_alone_where_training_is_slower() -> None:
    loop = Loop(rate=10.0, training=80.0)
    loop.run(HybridSchedule(speedup=2.0, clock=lambda: loop.now), 20)
    assert loop.activations == 0


def test_they_are_left_alone_where_switching_costs_more_than_it_saves() -> None:
    counts = []
    for switch in (4.0, 400.0):
        loop = Loop(rate=2.0, training=80.0, switch=switch)
        loop.run(HybridSchedule(speedup=2.0, clock=lambda loop=loop: loop.now), 20)  # type: ignore[misc]
        counts.append(loop.activations)
    assert counts[0] > 15 and counts[1] <= 2  # what it takes is not known at first


def test_it_follows_rates_that_change() -> None:
    loop = Loop(rate=10.0, training=80.0)
    policy = HybridSchedule(speedup=2.0, clock=lambda: loop.now)
    loop.run(policy, 10)
    assert loop.activations == 0
    loop.rate, loop.taken, loop.made = 1.0, 0, 0.0
    loop.run(policy, 20)
    assert loop.activations > 15


def test_without_standalone_replicas_all_samples_are_waited_for() -> None:
    policy = HybridSchedule(only_hybrid=True)
    ctx = Context(64, 4)
    assert policy.should_activate_after_step(0, False, ctx)
    assert policy.should_deactivate(0, True, ctx)
    assert policy.deactivate_wait_samples(ctx) == 256


def test_before_a_cycle_was_measured_the_given_ratio_counts() -> None:
    policy, ctx = HybridSchedule(deactivate_ratio=0.5), Context(64, 4)
    assert not policy.should_activate_after_step(0, False, ctx)
    assert policy.deactivate_wait_samples(ctx) == 128


def test_what_is_wanted_is_at_least_a_step_and_at_most_a_cycle() -> None:
    assert CycleSpeeds(1.0, 100.0, 2.0).wanted(256, 64) == 256 - 75
    assert CycleSpeeds(100.0, 100.0, 2.0).wanted(256, 64) == 64
    assert CycleSpeeds(0.001, 1.0, 2.0).wanted(256, 64) == 256
    assert CycleSpeeds(2.0, 1.0, 3.0).saved(60) == pytest.approx(20.0)


# -- with verl itself -------------------------------------------------------------------------------------------------


def test_it_has_the_methods_of_verls_base() -> None:
    base = pytest.importorskip("verl.experimental.fully_async_policy.dynamic_schedule.base")
    known = base.DynamicSchedulePolicyBase
    methods = {name: each for name, each in vars(known).items() if inspect.isfunction(each)}
    assert set(known.__abstractmethods__) < set(methods) and len(methods) == 5
    for name, theirs in methods.items():
        ours = inspect.signature(getattr(HybridSchedule, name))
        assert list(ours.parameters) == list(inspect.signature(theirs).parameters), name
    context = base.DynamicScheduleContext(64, 4, 0, 0, 0)
    assert all(hasattr(context, name) for name in ScheduleContext.__annotations__)


def test_verl_builds_it_by_name_and_hands_it_the_rollouter(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = pytest.importorskip("verl.experimental.fully_async_policy.dynamic_schedule")
    import steelyard.live.adapters.verl_plugin  # noqa: F401

    policy = schedule.build_policy("steelyard", deactivate_ratio=0.4, only_hybrid=False)
    assert isinstance(policy, HybridSchedule)
    rollouter = _Rollouter()
    asked: list[object] = []
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "get", lambda each: (asked.append(each), each)[1])  # type: ignore[func-returns-value]
    controller = schedule.DynamicResourceController(rollouter, None, 2, 4, policy=policy)
    context = schedule.DynamicScheduleContext(64, 4, 0, 0, 0)
    assert not policy.should_deactivate(0, controller.is_hybrid_active, context)
    context.total_generated_samples = 300
    policy.should_activate_after_step(0, False, context)
    assert policy._faster() == 3.0
    policy.request_rebalance(0, context)
    assert asked[-1] == {"cleared_entries": 0}


def test_it_beside_verls_own_policy() -> None:
    default = pytest.importorskip("verl.experimental.fully_async_policy.dynamic_schedule.default_policy")
    for rate, training in ((0.5, 80.0), (1.0, 20.0), (2.0, 80.0), (6.0, 20.0), (6.0, 80.0)):
        ours, theirs = Loop(rate, training), Loop(rate, training)
        policy = HybridSchedule(speedup=2.0, clock=lambda ours=ours: ours.now)  # type: ignore[misc]
        own = mean_of_late(ours.run(policy, 60))
        assert own <= 1.02 * mean_of_late(theirs.run(default.DefaultDynamicSchedulePolicy(), 60))


class _Rollouter:
    """As the Ray actor that verl's policies ask."""

    class _Method:
        def __init__(self, answer: object) -> None:
            self._answer = answer

        def remote(self) -> object:
            return self._answer

    get_standalone_replicas = _Method([1, 2])
    get_all_hybrid_replicas = _Method({"a": 1, "b": 2, "c": 3, "d": 4})
    rebalance_requests = _Method({"cleared_entries": 0})
