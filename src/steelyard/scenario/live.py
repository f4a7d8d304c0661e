"""What a live run of a small model is asked for. Runs on emulated engines take a post-training scenario instead."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal

from pydantic import Field, model_validator

from steelyard.scenario.base import Written, mistake
from steelyard.scenario.load import load


class GrpoScenario(Written):
    """A small model learns a task with GRPO: engines that serve it, agents with a tool, a trainer."""

    task: Literal["calculator"] = Field(description="What is learnt: `calculator`, sums with a tool that can add.")
    engine: Literal["small", "vllm"] = Field(
        default="small", description="What serves it: `small`, the engine that comes with Steelyard, or `vllm`."
    )
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="Where engines and the trainer compute.")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Of weights on vLLM engines, by which their log-probabilities are judged."
    )
    memory: float = Field(default=1.0, gt=0, le=1000, description="GiB of each vLLM engine's KV cache.")
    engines: int = Field(default=2, ge=1, le=16, description="Engines, each a process of its own.")
    steps: int = Field(default=40, ge=1, le=10_000, description="Training steps.")
    prompts: int = Field(default=16, ge=1, le=1024, description="Prompts of a step.")
    group: int = Field(default=8, ge=2, le=1024, description="Samples of each prompt.")
    staleness: int = Field(
        default=1,
        ge=0,
        le=8,
        description="Weight versions that a sample may be behind. 0: rollout and training take turns.",
    )
    router: Literal["cost-aware", "least-outstanding", "round-robin", "sticky", "c-mlfq"] = Field(
        default="cost-aware", description="Where turns run."
    )
    pool: Literal["none", "thresholds", "payoff"] = Field(
        default="none",
        description="By which rule engines are lent to training; all but the last can be. `none`: none is.",
    )
    baseline: bool = Field(
        default=False, description="Whether it is run a second time with turns of rollout and training, round-robin."
    )
    learning_rate: float = Field(default=1e-3, gt=0, le=1, description="Of Adam.")
    warm_up: int = Field(default=200, ge=0, le=100_000, description="Steps on demonstrations before the run.")
    seed: int = Field(default=0, ge=0, lt=1 << 31, description="Of weights, prompts and samples.")

    @model_validator(mode="after")
    def _has_engines_to_lend(self) -> GrpoScenario:
        if self.pool != "none" and self.engines < 2:
            raise mistake("one engine always rolls out; give at least 2 engines, or leave the pool out", "pool")
        return self


def load_grpo(path: str | PathLike[str], overrides: Sequence[str] = ()) -> GrpoScenario:
    """Read such a file and apply ``--set`` overrides."""
    return load(GrpoScenario, path, overrides)
