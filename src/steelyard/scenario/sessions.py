"""What a request is part of: openings that many share, conversations, plans of hidden rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steelyard.scenario.base import Count, NonNegative, Spec
from steelyard.scenario.distributions import FixedSeconds, FixedTokens, SecondsSpec, TokensSpec


class PrefixSpec(Spec):
    """Tokens that open many prompts: a system prompt, a document, few-shot examples."""

    tokens: Count = Field(description="Length of the shared opening in tokens.")
    groups: Count = Field(
        default=1, description="How many different openings there are; each request uses one of them."
    )
    zipf: NonNegative = Field(
        default=0.0,
        description="Popularity: the k-th opening is used in proportion to k ** -zipf. 0: all alike.",
    )


def expand_prefix(value: Any) -> Any:
    """A bare number of tokens stands for one opening shared by all."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"tokens": value}
    return value


SharedPrefix = Annotated[PrefixSpec, BeforeValidator(expand_prefix, json_schema_input_type=Count | PrefixSpec)]


class SessionSpec(Spec):
    """Conversations: every later turn's prompt is the whole conversation so far plus new user tokens."""

    turns: TokensSpec = Field(description="Requests per session.")
    think: SecondsSpec = Field(
        default=FixedSeconds(kind="fixed", seconds=0.0),
        description="Pause between an answer and the next turn.",
    )
    system: SharedPrefix | None = Field(
        default=None,
        description="Tokens before the first turn that sessions share; comes on top of `prompt`.",
    )


Retention = Literal["kept", "held", "dropped"]


class StageSpec(Spec):
    """Hidden rounds of a request's plan: each generates tokens and calls a tool, whose result the next one reads.

    The first round reads the user's prompt, and the visible answer, the request's `output`, comes after the last stage.
    """

    rounds: TokensSpec = Field(
        default=FixedTokens(kind="fixed", tokens=1), description="Rounds one after the other, in each branch."
    )
    branches: TokensSpec = Field(
        default=FixedTokens(kind="fixed", tokens=1),
        description="Chains of rounds at the same time. With several, what they generate stays with them: whoever "
        "comes next waits for all of them and reads the results of their last tools.",
    )
    output: TokensSpec = Field(description="Tokens that a round generates, which its user does not see.")
    tool: SecondsSpec = Field(
        default=FixedSeconds(kind="fixed", seconds=0.0), description="How long the tool takes that a round calls."
    )
    result: TokensSpec = Field(
        default=FixedTokens(kind="fixed", tokens=1), description="Tokens that the tool adds to the next prompt."
    )
    kv: Retention = Field(
        default="kept",
        description="The round's KV blocks while its tool runs. kept: in the prefix cache until others need the room; "
        "held: nobody else gets them before the next round has begun, unless the engine could do nothing at all; "
        "dropped: free at once, but for what other requests use or open with.",
    )


def expand_plan(value: Any) -> Any:
    """One stage is a plan."""
    return [value] if isinstance(value, Mapping | StageSpec) else value


Plan = Annotated[
    tuple[StageSpec, ...],
    Field(min_length=1),
    BeforeValidator(expand_plan, json_schema_input_type=StageSpec | list[StageSpec]),
]
