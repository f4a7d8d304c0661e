"""What a user writes about the last trajectories of a step: wait for them, or one of the ways not to."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steelyard.scenario.base import Count, Positive, Share, Spec, kinds_of, mistake

AtLeastOne = Annotated[float, Field(ge=1)]


class _Policy(Spec):
    """What all have in common."""

    @property
    def carried(self) -> int:
        """Steps by which samples may be carried over; each makes them one weight version older."""
        return 0

    @property
    def waits(self) -> bool:
        """Whether every trajectory is waited for in the end, so that none that was begun is lost."""
        return True


class NoTail(_Policy):
    """Every trajectory of a batch is waited for."""

    kind: Literal["none"] = Field(default="none", description="Wait for all.")


class OverSamplingSpec(_Policy):
    """More prompts are begun than a step trains on; those that are not complete go on in the next."""

    kind: Literal["over-sampling"] = Field(description="Begin more, stop at enough, go on with the rest later.")
    factor: Annotated[float, Field(gt=1)] = Field(default=2.0, description="Prompts under way for each one wanted.")

    @property
    def carried(self) -> int:
        return ceil(self.factor) - 1

    @property
    def waits(self) -> bool:
        return False


class TailBatchingSpec(_Policy):
    """Prompts race; those that lose are begun anew in a later step that waits for all of them."""

    kind: Literal["tail-batching"] = Field(description="Defer the slowest prompts to a step of their own.")
    groups: AtLeastOne = Field(default=1.25, description="Prompts begun for each one wanted.")
    samples: AtLeastOne = Field(default=1.25, description="Samples begun for each one that a group needs.")

    @property
    def waits(self) -> bool:
        return False


class PartialSpec(_Policy):
    """A trajectory generates so many tokens a step; the step trains on the groups that are complete by then."""

    kind: Literal["partial"] = Field(description="A token budget for each step; the rest goes on in the next.")
    budget: Count = Field(default=4096, description="Tokens that a trajectory may generate in a step.")

    @property
    def carried(self) -> int:
        return 1

    @property
    def waits(self) -> bool:
        return False


class DividedSpec(_Policy):
    """Trajectories run in chunks and queue again after each."""

    kind: Literal["divided"] = Field(description="Chunks; the longest go first, by what the rest of their group took.")
    chunk: Count = Field(default=1024, description="Tokens of a chunk.")


class RepackSpec(_Policy):
    """When few trajectories are left they are gathered on few replicas."""

    kind: Literal["repack"] = Field(description="Gather the last ones on few replicas.")
    few: Share = Field(default=0.25, description="Share of a step's samples that counts as few.")
    fill: Annotated[Positive, Field(le=1)] = Field(
        default=0.5, description="Share of the seats and of the cache of a replica that may be filled."
    )


_KINDS = (NoTail, OverSamplingSpec, TailBatchingSpec, PartialSpec, DividedSpec, RepackSpec)
TAIL_NAMES = tuple(kinds_of(*_KINDS))


def _named(value: Any) -> Any:
    """A bare name is the policy with its usual settings."""
    if value is None or isinstance(value, str):
        return {"kind": value or "none"}
    if isinstance(value, dict) and "kind" not in value:
        raise mistake(f"missing; choose one of {', '.join(kinds_of(*_KINDS))}", "kind")
    return value


_Any = Annotated[
    NoTail | OverSamplingSpec | TailBatchingSpec | PartialSpec | DividedSpec | RepackSpec, Field(discriminator="kind")
]
TailSpec = Annotated[_Any, BeforeValidator(_named, json_schema_input_type=str | _Any)]
