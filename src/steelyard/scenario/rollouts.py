"""Trajectories of agents: turns and tools; groups; drift as the policy learns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from steelyard.errors import UserError, did_you_mean
from steelyard.files.yamltext import read_yaml
from steelyard.scenario.base import Spec, kind_required, mistake
from steelyard.scenario.distributions import SecondsSpec, TokensSpec, refuse_disorder
from steelyard.scenario.numbers import (
    Amount,
    Context,
    Factor,
    Groups,
    HalfShare,
    LogDeviation,
    PositiveAmount,
    PositiveSeconds,
    Reward,
    Samples,
    Share,
    Tasks,
    Tokens,
    Turns,
    WeightOrZero,
    Whole,
    unit,
)
from steelyard.scenario.problems import dotted, findings, listed

_PRESETS = Path(__file__).parent / "rollouts.yaml"
_FACTOR = "Factor on the value at the start; 1: no change."


def _both_ends(value: Any) -> Any:
    """A single number applies at the start and at the end."""
    return (value, value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class ToolSpec(Spec):
    """A tool: how often it is called, how it answers, and how that changes the remaining work."""

    name: str = Field(min_length=1, description="Name of the tool, which estimators see.")
    share: Annotated[
        tuple[WeightOrZero, WeightOrZero],
        BeforeValidator(_both_ends, json_schema_input_type=WeightOrZero | tuple[WeightOrZero, WeightOrZero]),
    ] = Field(
        default=(1.0, 1.0),
        description="Relative frequency among the tools: one number, or [at the start of the work, at its end], linear "
        "in between.",
    )
    latency: SecondsSpec = Field(description="Seconds from call to return, at medium difficulty; at most `limit`.")
    limit: PositiveSeconds = Field(default=60.0, description="Seconds that a call takes if it times out.")
    returned: TokensSpec = Field(description="Tokens that a success adds to the context.")
    error_returned: TokensSpec | None = Field(
        default=None, description="Tokens that an error or a timeout adds; as `returned` if not given."
    )
    error: Share = Field(default=0.0, description="Chance of an error, at medium difficulty.")
    timeout: Share = Field(default=0.0, description="Chance of a timeout, at medium difficulty.")
    harder: Factor = Field(
        default=1.0, description="Factor on the odds of errors and timeouts for each standard deviation of difficulty."
    )
    slower: Factor = Field(default=1.0, description="Factor on latency for each standard deviation of difficulty.")
    advance: Amount = Field(
        default=1.0, description="Steps of work that a success completes.", json_schema_extra=unit("steps of work")
    )
    rework: Amount = Field(
        default=0.0, description="Steps of work that an error adds.", json_schema_extra=unit("steps of work")
    )
    insight: HalfShare = Field(
        default=0.0,
        description="Chance that a success shortens the remaining work (by `shorten`). It grows with the length of the "
        "result, from 0 for the shortest to twice this for the longest.",
    )

    @model_validator(mode="after")
    def _sometimes_works(self) -> ToolSpec:
        if self.error + self.timeout >= 1:
            raise mistake(f"error and timeout come to {self.error + self.timeout:g}; some calls must succeed", "error")
        return self


class SpreadSpec(Spec):
    """Variation between trajectories: standard deviations of the natural logarithm."""

    by_task: LogDeviation = Field(
        default=0.0, description="Standard deviation between tasks, by difficulty; the same for a whole group."
    )
    by_sample: LogDeviation = Field(default=0.0, description="Standard deviation between samples of one task.")


class WorkSpec(SpreadSpec):
    """Steps of work of a trajectory: successful calls of tools with ``advance`` 1. Rounded; it may be 0."""

    median: PositiveAmount = Field(description="Median number of steps.", json_schema_extra=unit("steps of work"))


class BudgetSpec(Spec):
    """Limits at which a trajectory is cut off."""

    turns: Turns = Field(description="Most turns.")
    context: Context = Field(description="Most tokens in all: prompt, generated and returned.")
    response: Tokens | None = Field(default=None, description="Most tokens after the prompt; not limited if not given.")


class LearningSpec(Spec):
    """How reward rises, an assumption: reward = best - (best - start) * exp(-effective samples / samples)."""

    samples: Samples = Field(description="Effective samples after which 63 % of the gain is reached.")
    start: Reward = Field(default=0.0, description="Reward before any training.")
    best: Reward = Field(default=1.0, description="Reward in the limit.")
    stale_half: Factor | None = Field(
        default=None,
        description="Staleness, in weight versions, at which a sample counts half; no effect if not given.",
        json_schema_extra=unit("weight versions"),
    )
    target: Reward | None = Field(default=None, description="Reward for which the summary gives the time to reach it.")

    @model_validator(mode="after")
    def _upwards(self) -> LearningSpec:
        refuse_disorder("start", self.start, "best", self.best)
        if self.start == self.best:
            raise mistake("the same as start; nothing would be learnt", "best")
        if self.target is not None and not self.start < self.target < self.best:
            raise mistake(f"must lie between start ({self.start:g}) and best ({self.best:g})", "target")
        return self


class Factors(Spec):
    """Factors that drift changes."""

    tokens: Factor = Field(default=1.0, description=f"Generated tokens per turn. {_FACTOR}")
    turns: Factor = Field(default=1.0, description=f"Steps of work. {_FACTOR}")
    success: Factor = Field(default=1.0, description=f"Odds that a tool call succeeds. {_FACTOR}")


class DriftPoint(Factors):
    """The factors at one training step."""

    step: Whole = Field(description="Training step, from 0.", json_schema_extra=unit("training steps"))


class ScheduleDrift(Spec):
    """Drift by training step: linear between points, constant before the first and after the last."""

    kind: Literal["schedule"] = Field(description="By training step.")
    points: tuple[DriftPoint, ...] = Field(min_length=1, description="Factors by step.")

    @model_validator(mode="after")
    def _in_order(self) -> ScheduleDrift:
        for i, (before, after) in enumerate(pairwise(self.points)):
            if after.step <= before.step:
                raise mistake(f"not after the step before it, {before.step}", "points", i + 1, "step")
        return self


class LearningDrift(Factors):
    """Drift by learning: each factor goes from 1 to its given value, in proportion to the gain in reward.

    All earlier samples in the order of prompts count, and as fresh ones: how stale they were, which depends on the way
    the run is done, changes the reward but no trajectory.
    """

    kind: Literal["learning"] = Field(description="By samples trained on, as if fresh; needs `learning`.")


_AnyDrift = Annotated[ScheduleDrift | LearningDrift, Field(discriminator="kind")]
DriftSpec = Annotated[_AnyDrift, BeforeValidator(kind_required(ScheduleDrift, LearningDrift))]


class GroupsSpec(Spec):
    """Prompts and samples of one training step."""

    prompts: Groups = Field(default=128, description="Prompts per training step.", json_schema_extra=unit("prompts"))
    group: Groups = Field(
        default=16, description="Samples per prompt, the group of GRPO.", json_schema_extra=unit("samples")
    )
    learning: LearningSpec | None = Field(default=None, description="Model of how reward rises with training.")


class FileTrajectories(GroupsSpec):
    """Recorded trajectories. Prompts are drawn with replacement, and so are the trajectories of each prompt."""

    kind: Literal["recorded"] = Field(default="recorded", description="From a file; implied by `file`.")
    file: str = Field(min_length=1, description="A trajectory file (docs/trajectories.md); relative to the scenario.")


class TrajectorySpec(GroupsSpec):
    """Generated trajectories. Short form: the name of a preset. Keys beside `preset` override those of the preset."""

    kind: Literal["generated"] = Field(default="generated", description="Drawn at random; implied if no file is given.")
    name: str = Field(default="task", min_length=1, description="Prefix of task names, before their number.")
    tasks: Tasks = Field(
        description="Number of different tasks; a training step takes the next `prompts` of a shuffled epoch."
    )
    prompt: TokensSpec = Field(description="Tokens of a task's prompt.")
    thinking: TokensSpec = Field(description="Tokens of a turn before its call, at medium pace.")
    call: TokensSpec = Field(description="Tokens of the call itself, at medium pace.")
    answer: TokensSpec = Field(description="Tokens of the last turn, which calls no tool, at medium pace.")
    tools: tuple[ToolSpec, ...] = Field(min_length=1, max_length=1000, description="Tools that trajectories call.")
    work: WorkSpec = Field(description="Steps of work of a trajectory.")
    pace: SpreadSpec = Field(default=SpreadSpec(), description="Variation of tokens per turn.")
    after_error: Factor = Field(default=1.0, description="Factor on thinking in the turn after a failed call.")
    streak: Factor = Field(default=1.0, description="Factor on the odds of failing right after a failed call.")
    give_up: Share = Field(default=0.0, description="Chance to give up at a failed call; the next turn is the last.")
    shorten: Share = Field(default=0.5, description="Share of the remaining work that is left after an insight.")
    budget: BudgetSpec = Field(description="Limits on turns and tokens; a trajectory is cut off there.")
    drift: DriftSpec | None = Field(default=None, description="How lengths change during training.")

    @model_validator(mode="after")
    def _consistent(self) -> TrajectorySpec:
        if self.tasks < self.prompts:
            raise mistake(f"a training step takes {self.prompts} different prompts; give at least as many", "tasks")
        names = [tool.name for tool in self.tools]
        for i, tool in enumerate(self.tools):
            if names.count(tool.name) > 1:
                raise mistake("two tools have this name", "tools", i, "name")
        for end, word in enumerate(("begin", "end")):
            if not any(tool.share[end] for tool in self.tools):
                raise mistake(f"no tool has a share at the {word}; give one a share above 0", "tools")
        if not any(tool.advance for tool in self.tools):
            raise mistake("no tool advances the work; give one an advance above 0", "tools")
        if isinstance(self.drift, LearningDrift) and self.learning is None:
            raise mistake("missing; drift by learning needs it, for example {samples: 100000}", "learning")
        return self


@cache
def _presets() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = read_yaml(_PRESETS)
    return loaded


def preset_names() -> list[str]:
    """Names of the presets."""
    return list(_presets())


def preset_schema(whole: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of trajectories of a preset with some keys changed, from that of all keys."""
    preset = {"type": "string", "enum": preset_names(), "description": "The preset that has the keys not given."}
    found = {key: value for key, value in whole.items() if key != "title"}
    return {**found, "required": ["preset"], "properties": {"preset": preset, **whole["properties"]}}


def expand_trajectories(value: Any) -> Any:
    """A preset's name, or a mapping with one, as the whole mapping; `kind` follows from the other keys."""
    if isinstance(value, str):
        value = {"preset": value}
    if not isinstance(value, Mapping):
        return value
    data = dict(value)
    if "preset" in data:
        if "file" in data:
            raise mistake("give a file or a preset, not both", "preset")
        name = data.pop("preset")
        if not isinstance(name, str) or name not in _presets():
            raise mistake(f"not a preset; {did_you_mean(str(name), _presets())}", "preset")
        data = {"name": name, **_presets()[name], **data}
    return {"kind": "recorded" if "file" in data else "generated", **data}


_AnyTrajectories = Annotated[TrajectorySpec | FileTrajectories, Field(discriminator="kind")]
TrajectoriesSpec = Annotated[
    _AnyTrajectories, BeforeValidator(expand_trajectories, json_schema_input_type=str | _AnyTrajectories)
]
_ADAPTER: TypeAdapter[TrajectorySpec | FileTrajectories] = TypeAdapter(TrajectoriesSpec)


def trajectories_spec(data: Any, where: str = "trajectories") -> TrajectorySpec | FileTrajectories:
    """A preset's name or plain data, validated without a scenario file."""
    try:
        return _ADAPTER.validate_python(data)
    except ValidationError as error:
        found = findings(error, data)
        raise UserError(
            *listed([f"{where}: {dotted(path)}: {said}" if path else f"{where}: {said}" for path, said in found])
        ) from None
