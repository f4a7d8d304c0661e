"""What other policies would have done with the trajectories of a log.

The trajectories are simulated twice on the scenario's cluster: with the policies as they were, and with the changed
ones. What is gained is the difference of the two simulations. The difference between the first and the log is the
model's error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from zlib import crc32

from steelyard.balance.settings import CoreSettings
from steelyard.balance.tail import Reconfiguring
from steelyard.collector import collector_off
from steelyard.errors import UserError, blaming
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.history import DecidedLog, LoggedSample, RunHistory, run_history
from steelyard.posttrain.hybrid import PoolDriver
from steelyard.posttrain.loop import Loop, Progress
from steelyard.posttrain.plan_simulator import PlanSimulator, best_in_hindsight
from steelyard.posttrain.planning import planner_settings
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.replan import Replanner
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.records import Trajectory, Turn
from steelyard.scenario.checking import checked
from steelyard.scenario.overrides import apply_overrides, parse_override
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.size import check_end

_OF_THE_LOG = ("trajectories", "steps")  # keys that cannot be changed


@dataclass(frozen=True)
class RunSpeed:
    """How fast a run was: seconds to the last update of its training job, and tokens that were trained on."""

    steps: int
    seconds: float
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True)
class WhatIf:
    """The run of a log, the same simulated, and simulated with changes."""

    changes: tuple[str, ...]
    recorded: RunSpeed
    as_was: RunSpeed
    changed: RunSpeed
    samples: int  # of the log
    parts: int  # samples that did not end in it
    repeated: int  # samples that the changed run had beyond those of the log

    @property
    def gain(self) -> float:
        """Tokens per second that the changes gain, as a share, simulated against simulated."""
        return self.changed.tokens_per_second / self.as_was.tokens_per_second - 1

    @property
    def error(self) -> float:
        """Seconds of the simulated run as it was against those recorded, as a share."""
        return self.as_was.seconds / self.recorded.seconds - 1


def what_if(
    log: DecidedLog, scenario: PosttrainScenario, changes: Sequence[str], progress: Progress = lambda done, total: None
) -> WhatIf:
    """Simulate the trajectories of a log with its scenario, and with changes to it (``router=c-mlfq``)."""
    then = changed_scenario(scenario, changes)
    if scenario.objective is not None or then.objective is not None:
        raise UserError("objective: a log tells how one way was run; leave it out, and change mode, tail and so on")
    history = run_history(log)
    steps = len(history.trained)
    if not steps or history.seconds <= 0 or not any(each.whole for each in history.samples.values()):
        raise UserError(f"{log.name}: no training step ends in it, so there is nothing to compare")
    as_was, _ = _simulated(scenario, history, progress, like=history.settings)
    changed, repeated = _simulated(then, history, progress)
    samples = [each for group in history.groups.values() for each in group]
    return WhatIf(
        tuple(changes),
        RunSpeed(steps, history.seconds, history.tokens),
        as_was,
        changed,
        len(samples),
        sum(not each.ended for each in samples),
        repeated,
    )


def changed_scenario(scenario: PosttrainScenario, changes: Sequence[str]) -> PosttrainScenario:
    """A scenario with other policies, or on another cluster. The trajectories are those of the log."""
    try:
        overrides = [parse_override(text) for text in changes]
        for each in overrides:
            if each.path[0] in _OF_THE_LOG:
                raise UserError(f"{each.text}: {each.path[0]} are those of the log; change something else")
        data = apply_overrides(scenario.model_dump(mode="json", exclude_unset=True), overrides)
    except UserError as error:
        raise UserError(*(said.replace("--set ", "--what-if ", 1) for said in error.args)) from None
    place = f"{scenario.source} with {' '.join(f'--what-if {text}' for text in changes)}"
    return checked(PosttrainScenario, data, lambda _: place).based_in(scenario.base_dir, scenario.source)


# -- the trajectories of a log ------------------------------------------------------------------------------------


class LoggedTasks:
    """The samples of a log by prompt, in the order in which they began: a source of trajectories for a simulation.

    A sample that did not end goes on as one that did and was longer, of its own group if there is one. What is drawn
    beyond the log repeats its samples under other names.
    """

    def __init__(self, history: RunHistory, prompts: int, group: int) -> None:
        self._history, self._prompts, self._group = history, prompts, group
        self._known = {int(name): history.draws(name) for name, samples in history.groups.items() if samples}
        self._places = sorted(self._known)
        whole = [each.trajectory() for samples in self._known.values() for each in samples if each.whole]
        self._ended = sorted(whole, key=attrgetter("generated", "id"))
        self._longest = max(each.tokens for each in whole)
        self._made: dict[str, Trajectory] = {}
        self._again: set[tuple[int, int]] = set()

    @property
    def repeated(self) -> int:
        """Samples that were drawn beyond those of the log."""
        return len(self._again)

    def step(self, step: int) -> list[Trajectory]:
        return self.draw(range(step * self._prompts, (step + 1) * self._prompts))

    def draw(self, prompts: Sequence[int], samples: range | None = None) -> list[Trajectory]:
        which = range(self._group) if samples is None else samples
        return [self._sample(place, sample) for place in prompts for sample in which]

    def _sample(self, place: int, sample: int) -> Trajectory:
        known = self._known.get(place)
        if known is not None and sample < len(known):
            return self._whole(known[sample])
        self._again.add((place, sample))
        others = known or self._known[self._places[place % len(self._places)]]
        like = self._whole(others[sample % len(others)])
        return replace(like, id=f"again/{place}/{sample}", prompt=like.prompt if known else f"again/{place}")

    def _whole(self, sample: LoggedSample) -> Trajectory:
        if sample.name not in self._made:
            self._made[sample.name] = sample.trajectory() if sample.whole else self._completed(sample)
        return self._made[sample.name]

    def _completed(self, sample: LoggedSample) -> Trajectory:
        done = sample.generated + sample.fresh
        rest = _after(self._like(sample, done), done)
        turns = continued(sample, self._history.in_tool(sample), rest, self._longest)
        return replace(sample, turns=[*sample.turns, *turns]).trajectory()

    def _like(self, sample: LoggedSample, done: int) -> Trajectory | None:
        """A trajectory of more than ``done`` tokens, if any is known. Which of several, its name decides."""
        group = [each.trajectory() for each in self._known[int(sample.group)] if each.whole]
        longer = [each for each in group if each.generated > done]
        if not longer:
            longer = self._ended[bisect_right(self._ended, done, key=attrgetter("generated")) :]
        return longer[crc32(sample.name.encode()) % len(longer)] if longer else None


def _after(trajectory: Trajectory | None, done: int) -> list[Turn]:
    """What follows the first ``done`` tokens of a trajectory; one more token if there is none."""
    turns = () if trajectory is None else trajectory.turns
    for place, turn in enumerate(turns):
        if turn.generated > done:
            return [replace(turn, generated=turn.generated - done), *turns[place + 1 :]]
        done -= turn.generated
    return [Turn(1)]


def continued(sample: LoggedSample, in_tool: float | None, rest: Sequence[Turn], longest: int) -> list[Turn]:
    """The turns of a sample after those that the log has, up to a context of ``longest`` tokens.

    It does not end before it did in the log: the turn that was under way has at least one more token. A tool that had
    been running for ``in_tool`` seconds takes as long again as that of ``rest``.
    """
    first = rest[0]
    if in_tool is None:
        turns = [replace(first, generated=sample.fresh + first.generated), *rest[1:]]
    else:
        turns = [replace(first, generated=sample.fresh, latency=in_tool + (first.latency or 0.0)), *rest]
    context = sample.prompt_tokens + sum(turn.generated + turn.returned for turn in sample.turns)
    found: list[Turn] = []
    for turn in turns:
        least = 1 if found else sample.fresh + (in_tool is None)
        generated = min(turn.generated, max(least, longest - context))
        returned = min(turn.returned, max(0, longest - context - generated - 1))
        found.append(replace(turn, generated=generated, returned=returned))
        context += generated + returned
        if context >= longest and len(found) > (in_tool is not None):
            break
    return found


# -- simulating them ----------------------------------------------------------------------------------------------


def _simulated(
    scenario: PosttrainScenario, history: RunHistory, progress: Progress, like: CoreSettings | None = None
) -> tuple[RunSpeed, int]:
    """Simulate the steps of a log, and count samples beyond it. The core must be as it was, if ``like`` says how."""
    asked = scenario.trajectories
    tasks = LoggedTasks(history, asked.prompts, asked.group)
    setup = replace(set_up_posttrain(scenario), tasks=tasks)
    with blaming(scenario.source), collector_off():
        setups = best_in_hindsight(setup) if scenario.planner == "static-best" else [setup]
        runs = [_run(each, len(history.trained), progress, like) for each in setups]
    steps = max(runs, key=lambda run: run.settled).steps
    check_end(steps[-1].trained, scenario.source)
    return RunSpeed(len(steps), steps[-1].trained, sum(step.tokens for step in steps)), tasks.repeated


def _run(setup: PosttrainSetup, steps: int, progress: Progress, like: CoreSettings | None) -> LoopRecord:
    """The first ``steps`` steps of a run, which may have more."""
    loop = _loop(setup, like)
    now = 0.0
    for version in range(steps):
        step = loop.step(now, version)
        now = step.synced
        if loop.manager is not None and version + 1 < steps:
            now = loop.manager.after(step)
        progress(version + 1, steps)
    return loop.record


def _loop(setup: PosttrainSetup, like: CoreSettings | None) -> Loop:
    scenario = setup.scenario
    plans_anew = scenario.planner not in ("given", "static-best")
    simulator = PlanSimulator(setup) if plans_anew else None
    planner = (
        None
        if simulator is None
        else planner_settings(scenario, simulator.world, simulator.training, simulator.written)
    )
    settings = core_settings(setup, planner)
    if like is not None:
        _check_policies(settings, like)
    loop = Loop(setup, settings.core(), tells_truth=settings.tells_truth)
    if simulator is not None:
        loop.manager = Replanner(loop, simulator)
    elif scenario.pool != "none":
        loop.manager = loop.trainer.gate = PoolDriver(loop)
    return loop


def _check_policies(now: CoreSettings, then: CoreSettings) -> None:
    """Refuse a scenario whose policies are not those of the log."""
    theirs = _policies(then)
    for key, mine in _policies(now).items():
        if mine != theirs[key]:
            raise UserError(
                f"{key}: {_said(mine)} in the scenario, and {_said(theirs[key])} in the log; give the scenario of that "
                "run, or change its keys with --set"
            )


def _policies(settings: CoreSettings) -> dict[str, object]:
    """All but what a core is told of the cluster, by the key of a scenario that it comes from."""
    rounds = settings.rounds
    return {
        "router": settings.router,
        "queue_cap": settings.queue_cap,
        "estimator": settings.estimator,
        "planner": None if settings.planner is None else settings.planner.name,
        "pool": None if settings.pool is None else settings.pool.rule,
        "tail": replace(settings.tail, wide=None) if isinstance(settings.tail, Reconfiguring) else settings.tail,
        "seed": settings.seed,
        "steps": rounds.steps,
        "trajectories.prompts": rounds.groups,
        "trajectories.group": rounds.size,
        "staleness": rounds.staleness,
        "streaming": rounds.streaming,
        "mode": (rounds.synchronous, rounds.lead, rounds.waits),
        "admission": (rounds.concurrency, rounds.late),
    }


def _said(value: object) -> str:
    return "none" if value is None else str(value)
