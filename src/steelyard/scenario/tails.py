"""Tail policies: what to do about the last trajectories of a step."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steelyard.scenario.base import Spec, kinds_of, mistake
from steelyard.scenario.numbers import Degree, MoreThanOne, PositiveShare, Seconds, Share, Surplus, Tokens


class _Policy(Spec):
    """Base of all tail policies."""

    @property
    def carried(self) -> int:
        """Most steps that samples are carried over. Each adds one to their staleness."""
        return 0

    @property
    def begun(self) -> float:
        """Trajectories in progress per trajectory needed."""
        return 1.0

    @property
    def waits(self) -> bool:
        """Whether every trajectory that was begun is completed in the end."""
        return True


class NoTail(_Policy):
    """Every trajectory of a batch is waited for."""

    kind: Literal["none"] = Field(default="none", description="Wait for all.")


class OverSamplingSpec(_Policy):
    """More prompts are begun than a step trains on. Incomplete ones continue in the next step."""

    kind: Literal["over-sampling"] = Field(
        description="Begin more prompts, stop at enough, continue the rest in the next step."
    )
    factor: MoreThanOne = Field(default=2.0, description="Prompts in progress per prompt needed.")

    @property
    def carried(self) -> int:
        return ceil(self.factor) - 1

    @property
    def begun(self) -> float:
        return self.factor

    @property
    def waits(self) -> bool:
        return False


class TailBatchingSpec(_Policy):
    """More prompts are begun than needed. The slowest are begun again in a later step that waits for all of its own."""

    kind: Literal["tail-batching"] = Field(description="Defer the slowest prompts to a step of their own.")
    groups: Surplus = Field(default=1.25, description="Prompts begun per prompt needed.")
    samples: Surplus = Field(default=1.25, description="Samples begun per sample that a group needs.")

    @property
    def begun(self) -> float:
        return self.groups * self.samples

    @property
    def waits(self) -> bool:
        return False


class PartialSpec(_Policy):
    """A trajectory generates at most ``budget`` tokens per step. The step trains on the groups that are complete."""

    kind: Literal["partial"] = Field(
        description="A token budget per step; incomplete trajectories continue in the next."
    )
    budget: Tokens = Field(default=4096, description="Most tokens that a trajectory generates in a step.")

    @property
    def carried(self) -> int:
        return 1

    @property
    def waits(self) -> bool:
        return False


class DividedSpec(_Policy):
    """Trajectories run in chunks and queue again after each."""

    kind: Literal["divided"] = Field(
        description="Chunks; the trajectories predicted to be longest from their group go first."
    )
    chunk: Tokens = Field(default=1024, description="Tokens of a chunk.")


class RepackSpec(_Policy):
    """When few trajectories are left, they are moved to few replicas."""

    kind: Literal["repack"] = Field(description="Move the last trajectories to few replicas.")
    few: Share = Field(default=0.25, description="Share of a step's samples that counts as few.")
    fill: PositiveShare = Field(
        default=0.5, description="Most of a replica's seats and KV cache that may be filled, as a share."
    )


class ReconfigureSpec(_Policy):
    """When few trajectories are left, narrow engines are merged into wide ones, until the next step begins."""

    kind: Literal["reconfigure"] = Field(description="Merge narrow engines into wide ones for the last trajectories.")
    tp: Degree = Field(default=8, description="Tensor-parallel degree of the wide engines.")
    few: Share | None = Field(
        default=None,
        description="Share of a step's samples that counts as few; if not given, they are merged once it is predicted "
        "to pay.",
    )
    start: Seconds = Field(
        default=1.0,
        description="Seconds until engines of another layout run, beside getting weights and caches: about 1 if they "
        "sleep on their GPUs, a minute if processes start and capture graphs anew.",
    )


_KINDS = (NoTail, OverSamplingSpec, TailBatchingSpec, PartialSpec, DividedSpec, RepackSpec, ReconfigureSpec)
TAIL_NAMES = tuple(kinds_of(*_KINDS))
CARRYING = tuple(kinds_of(OverSamplingSpec, PartialSpec))  # they carry samples over to later steps


def _named(value: Any) -> Any:
    """A name stands for the policy with default settings."""
    if value is None or isinstance(value, str):
        return {"kind": value or "none"}
    if isinstance(value, dict) and "kind" not in value:
        raise mistake(f"missing; choose one of {', '.join(kinds_of(*_KINDS))}", "kind")
    return value


_Any = Annotated[
    NoTail | OverSamplingSpec | TailBatchingSpec | PartialSpec | DividedSpec | RepackSpec | ReconfigureSpec,
    Field(discriminator="kind"),
]
TailSpec = Annotated[_Any, BeforeValidator(_named, json_schema_input_type=str | _Any)]
