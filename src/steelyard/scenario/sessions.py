"""Shared prefixes, sessions of several turns, plans of hidden rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from steelyard.scenario.base import Spec
from steelyard.scenario.distributions import FixedSeconds, FixedTokens, SecondsSpec, TokensSpec
from steelyard.scenario.numbers import Exponent, Groups, Tokens, unit


class PrefixSpec(Spec):
    """A prefix that many prompts share: a system prompt, a document, few-shot examples."""

    tokens: Tokens = Field(description="Length of the shared prefix in tokens.")
    groups: Groups = Field(
        default=1,
        description="Number of different prefixes; each request uses one of them.",
        json_schema_extra=unit("prefixes"),
    )
    zipf: Exponent = Field(
        default=0.0,
        description="Popularity: the k-th prefix is used in proportion to k ** -zipf. 0: all equally.",
    )


def expand_prefix(value: Any) -> Any:
    """A number of tokens stands for one prefix that all requests share."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"tokens": value}
    return value


SharedPrefix = Annotated[PrefixSpec, BeforeValidator(expand_prefix, json_schema_input_type=Tokens | PrefixSpec)]


class SessionSpec(Spec):
    """Conversations: the prompt of a turn is the whole conversation so far plus new user tokens."""

    turns: TokensSpec = Field(description="Requests per session.", json_schema_extra=unit("requests"))
    think: SecondsSpec = Field(
        default=FixedSeconds(kind="fixed", seconds=0.0),
        description="Seconds between an answer and the next turn.",
    )
    system: SharedPrefix | None = Field(
        default=None,
        description="Tokens before the first turn that sessions share, in addition to `prompt`.",
    )


Retention = Literal["kept", "held", "dropped"]


class StageSpec(Spec):
    """Hidden rounds of a request's plan. Each generates tokens and calls a tool, whose result the next round reads.

    The first round reads the user's prompt. The visible answer, the request's `output`, comes after the last stage.
    """

    rounds: TokensSpec = Field(
        default=FixedTokens(kind="fixed", tokens=1),
        description="Consecutive rounds in each branch, at most 10,000.",
        json_schema_extra=unit("rounds"),
    )
    branches: TokensSpec = Field(
        default=FixedTokens(kind="fixed", tokens=1),
        description="Parallel chains of rounds, at most 10,000. With several, the next stage waits for all of them and "
        "reads only the results of their last tools.",
        json_schema_extra=unit("branches"),
    )
    output: TokensSpec = Field(description="Tokens that a round generates, which the user does not see.")
    tool: SecondsSpec = Field(
        default=FixedSeconds(kind="fixed", seconds=0.0), description="Seconds that a round's tool call takes."
    )
    result: TokensSpec = Field(
        default=FixedTokens(kind="fixed", tokens=1), description="Tokens that the tool adds to the next prompt."
    )
    kv: Retention = Field(
        default="kept",
        description="KV blocks of a round while its tool runs. kept: in the prefix cache until others need the space; "
        "held: reserved until the next round starts, unless the engine could not run anything else; dropped: freed at "
        "once, except blocks that other requests use or share as a prefix.",
    )


def expand_plan(value: Any) -> Any:
    """A single stage stands for a plan of one stage."""
    return [value] if isinstance(value, Mapping | StageSpec) else value


Plan = Annotated[
    tuple[StageSpec, ...],
    Field(min_length=1, max_length=100),
    BeforeValidator(expand_plan, json_schema_input_type=StageSpec | list[StageSpec]),
]
