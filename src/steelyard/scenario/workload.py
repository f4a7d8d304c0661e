"""Workloads: requests and their arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from steelyard.scenario.arrivals import (
    ArrivalsSpec,
    BurstArrivals,
    ClosedArrivals,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
    TraceArrivals,
    VaryingArrivals,
)
from steelyard.scenario.base import Spec, mistake, number_or_kind
from steelyard.scenario.distributions import FixedSeconds, FixedTokens, SecondsSpec, TokensSpec
from steelyard.scenario.numbers import (
    MOST_REQUESTS,
    MOST_SECONDS,
    FewOrZero,
    Integer,
    PositiveSeconds,
    Requests,
    Share,
    Weight,
    WeightOrZero,
    unit,
)
from steelyard.scenario.sessions import Plan, SessionSpec, SharedPrefix


class FixedPriority(Spec):
    """The same priority for all. Short form: the number."""

    kind: Literal["fixed"] = Field(description="Every request has the same priority.")
    value: Integer = Field(description="Lower is served first.", json_schema_extra=unit("priority"))


class ChoicePriority(Spec):
    """Priorities drawn from a list."""

    kind: Literal["choice"] = Field(description="Drawn from a list of priorities.")
    values: tuple[Integer, ...] = Field(
        min_length=1, description="The priorities; lower is served first.", json_schema_extra=unit("priority")
    )
    weights: tuple[WeightOrZero, ...] | None = Field(
        default=None, description="Relative frequency of each; equal if not given."
    )

    @model_validator(mode="after")
    def _weights_match(self) -> ChoicePriority:
        if self.weights is None:
            return self
        if len(self.weights) != len(self.values):
            raise mistake(f"{len(self.weights)} weights for {len(self.values)} values; give one each", "weights")
        if not any(self.weights):
            raise mistake("at least one weight must be above 0", "weights")
        return self


_AnyPriority = Annotated[FixedPriority | ChoicePriority, Field(discriminator="kind")]
expand_priority = number_or_kind("value", FixedPriority, ChoicePriority)
PrioritySpec = Annotated[_AnyPriority, BeforeValidator(expand_priority, json_schema_input_type=Integer | _AnyPriority)]


class AcceptSpec(Spec):
    """Accepted draft tokens per verify step. Short form: a list, a cycle if all of it is whole numbers."""

    cycle: tuple[FewOrZero, ...] | None = Field(
        default=None,
        min_length=1,
        description="Accepted draft tokens of each verify step, repeated.",
        json_schema_extra=unit("tokens"),
    )
    probabilities: tuple[Share, ...] | None = Field(
        default=None,
        min_length=1,
        description="Share of verify steps that accept the first, second, ... draft token (vLLM's "
        "per-position acceptance rate, so never rising); drawn once per request.",
    )

    @model_validator(mode="after")
    def _one_form(self) -> AcceptSpec:
        if (self.cycle is None) == (self.probabilities is None):
            raise mistake("give either cycle or probabilities")
        for i, (before, after) in enumerate(
            zip(self.probabilities or (), (self.probabilities or ())[1:], strict=False)
        ):
            if after > before:
                raise mistake(
                    f"{after:g} is above the {before:g} before it: a draft token is accepted only after "
                    "those before it, so the shares never rise",
                    "probabilities",
                    i + 1,
                )
        return self

    @property
    def most(self) -> int:
        """The largest number of draft tokens that a step may accept."""
        return max(self.cycle) if self.cycle is not None else len(self.probabilities or ())


def expand_accept(value: Any) -> Any:
    """A list of whole numbers is a cycle; a list with a decimal point has shares."""
    if not isinstance(value, list | tuple):
        return value
    return {"probabilities" if any(isinstance(each, float) for each in value) else "cycle": value}


Accept = Annotated[
    AcceptSpec,
    BeforeValidator(expand_accept, json_schema_input_type=tuple[FewOrZero, ...] | tuple[Share, ...] | AcceptSpec),
]

TraceFormat = Literal["auto", "azure", "mooncake", "vllm-bench", "capture", "gateway"]


class TraceSpec(Spec):
    """Recorded requests: prompts, outputs, shared prefixes and, by default, arrival times."""

    file: str = Field(min_length=1, description="The trace (may be gzipped); relative to the scenario's folder.")
    format: TraceFormat = Field(
        default="auto",
        description="azure: CSV of TIMESTAMP, ContextTokens, GeneratedTokens; mooncake: JSON lines with "
        "hash_ids; vllm-bench: JSON lines with lengths or token ids; capture: a NAME.workload.json; gateway: "
        "a log of `steelyard gateway --log`; auto: look at the file.",
    )
    limit: Requests | None = Field(default=None, description="Read only this many requests.")
    sent: str | None = Field(
        default=None,
        min_length=1,
        description="For a capture: its NAME.requests.jsonl.gz, which has the order in which the client sent requests "
        "of the same second.",
    )
    cached: str | None = Field(
        default=None,
        min_length=1,
        description="For a capture: its NAME.requests.jsonl.gz, to take prefix-cache hits from there instead of "
        "simulating the cache.",
    )


class WorkloadSpec(Spec):
    """One stream of requests, drawn or from a trace."""

    name: str | None = Field(default=None, min_length=1, description="Label of these requests in the results.")
    model: str | None = Field(
        default=None,
        min_length=1,
        description="The model that these requests ask for, by its name in `model` or in a pool; the scenario's own if "
        "not given.",
    )
    share: Weight | None = Field(
        default=None,
        description="Weight in a mix: this workload gets share / (sum of shares) of its rate (or users) and "
        "of its requests. Give one to every workload of a mix, or to none.",
    )
    arrivals: ArrivalsSpec | None = Field(default=None, description="When requests (or sessions) arrive.")
    requests: Requests | None = Field(
        default=None,
        description="Number of requests; each turn of a session counts, hidden rounds do not. For a trace: the most.",
    )
    duration: PositiveSeconds | None = Field(
        default=None, description="Seconds after which no new request (or session) arrives."
    )
    prompt: TokensSpec | None = Field(
        default=None,
        description="Prompt length, the shared prefix included; in a session: new user tokens per turn.",
    )
    output: TokensSpec | None = Field(default=None, description="Generated tokens per request.")
    prefix: SharedPrefix | None = Field(
        default=None,
        description="Prefix tokens that requests share. A shorter prompt is extended to the prefix plus one token.",
    )
    session: SessionSpec | None = Field(default=None, description="Makes each arrival a conversation of several turns.")
    plan: Plan | None = Field(
        default=None,
        description="Hidden rounds and tools before each request's visible answer, stage by stage.",
    )
    priority: PrioritySpec = Field(
        default=FixedPriority(kind="fixed", value=0),
        description="For engine.policy priority; lower is served first.",
        json_schema_extra=unit("priority"),
    )
    abort_after: SecondsSpec | None = Field(
        default=None, description="Seconds after submission at which the client aborts; never if not given."
    )
    accept: Accept | None = Field(
        default=None,
        description="Accepted draft tokens per verify step; engine.acceptance if not given.",
        json_schema_extra=unit("tokens, or share of 1"),
    )
    trace: TraceSpec | None = Field(default=None, description="Recorded requests instead of drawn ones.")

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadSpec:
        if self.trace is not None:
            self._check_trace()
        elif isinstance(self.arrivals, TraceArrivals):
            raise mistake("trace arrivals need a trace: give trace.file, or another kind of arrivals", "arrivals")
        else:
            for name, value in (("prompt", self.prompt), ("output", self.output)):
                if value is None:
                    raise mistake(
                        "missing; give a length, such as 512 or {kind: lognormal, median: 512, p95: 2048}",
                        name,
                    )
        if self.plan is not None and self.plan[0].branches != FixedTokens(kind="fixed", tokens=1):
            raise mistake("a request begins with one round; give branches to a later stage", "plan", 0, "branches")
        if self.session is not None and self.prefix is not None:
            raise mistake("a session's shared opening is session.system; do not give prefix too", "prefix")
        if isinstance(self.abort_after, FixedSeconds) and self.abort_after.seconds == 0:
            raise mistake("must be above 0 seconds: nobody gives up before asking", "abort_after")
        return self

    def _check_trace(self) -> None:
        own = {
            "prompt": self.prompt,
            "output": self.output,
            "prefix": self.prefix,
            "session": self.session,
            "plan": self.plan,
        }
        for name, value in own.items():
            if value is not None:
                raise mistake("the trace says this; remove it, or remove trace", name)
        if self.share is not None:
            raise mistake("a trace takes part whole; use trace.limit and arrivals.scale to thin it", "share")


class MixSpec(Spec):
    """Several workloads at the same time. A single workload or a list of them stands for a mix."""

    mix: tuple[WorkloadSpec, ...] = Field(min_length=1, max_length=1000, description="The workloads.")
    arrivals: ArrivalsSpec | None = Field(default=None, description="Arrivals of workloads without `arrivals`.")
    requests: Requests | None = Field(
        default=None, description="Requests of workloads without `requests` and `duration`."
    )
    duration: PositiveSeconds | None = Field(
        default=None, description="Duration in seconds of workloads without `requests` and `duration`."
    )

    @model_validator(mode="after")
    def _complete(self) -> MixSpec:
        if any(spec.share is not None for spec in self.mix):
            for i, spec in enumerate(self.mix):
                if spec.share is None and spec.trace is None:
                    raise mistake("missing; give every workload of the mix a share, or none", "mix", i, "share")
        workloads = self.workloads()
        for i, spec in enumerate(workloads):
            _check_amount(spec, i)
        total = sum(share * (spec.requests or 0) for share, spec in zip(self.shares(), workloads, strict=True))
        if total > MOST_REQUESTS:
            raise mistake(f"{total:,.0f} requests in all; at most {MOST_REQUESTS:,} can be simulated", "mix")
        names = [spec.name for spec in self.mix if spec.name is not None]
        for i, spec in enumerate(self.mix):
            if spec.name is not None and names.count(spec.name) > 1:
                raise mistake("two workloads of the mix have this name", "mix", i, "name")
        return self

    def workloads(self) -> list[WorkloadSpec]:
        """Each workload, completed by the keys of the mix."""
        return [self._filled(spec) for spec in self.mix]

    def shares(self) -> list[float]:
        """Each workload's share of its rate and requests; 1 if no shares are given."""
        total = sum(spec.share or 0.0 for spec in self.mix)
        return [1.0 if spec.share is None else spec.share / total for spec in self.mix]

    def _filled(self, spec: WorkloadSpec) -> WorkloadSpec:
        update: dict[str, Any] = {}
        if spec.trace is not None:
            if spec.arrivals is None:
                update["arrivals"] = TraceArrivals(kind="trace", scale=1.0)
        else:
            if spec.arrivals is None:
                update["arrivals"] = self.arrivals
            if spec.requests is None and spec.duration is None:
                update["requests"], update["duration"] = self.requests, self.duration
        return spec.model_copy(update=update) if update else spec


def _check_amount(spec: WorkloadSpec, i: int) -> None:
    """Check that arrivals, and requests or duration, are given."""
    if spec.arrivals is None:
        raise mistake("missing; for example {kind: poisson, rate: 10}", "mix", i, "arrivals")
    if isinstance(spec.arrivals, TraceArrivals) and spec.trace is None:  # those of the mix
        raise mistake("trace arrivals need a trace: give this workload arrivals of its own", "mix", i, "arrivals")
    if spec.trace is not None:
        return
    if isinstance(spec.arrivals, BurstArrivals | ClosedArrivals) and spec.requests is None:
        raise mistake(f"missing; {spec.arrivals.kind} arrivals need a number of requests", "mix", i, "requests")
    if isinstance(spec.arrivals, ClosedArrivals) and spec.duration is not None:
        raise mistake("a closed loop ends when its requests are used up; give requests only", "mix", i, "duration")
    if spec.requests is None and spec.duration is None:
        raise mistake("missing; give requests (a number), duration (seconds), or both", "mix", i, "requests")
    if spec.requests is None and isinstance(spec.arrivals, PoissonArrivals | GammaArrivals | ConstantArrivals):
        assert spec.duration is not None
        if spec.arrivals.rate * spec.duration > MOST_REQUESTS:
            longest = f"{MOST_REQUESTS / spec.arrivals.rate:g} s at {spec.arrivals.rate:g} requests/s"
            raise mistake(f"more than {MOST_REQUESTS:,} requests; at most {longest}", "mix", i, "duration")
    if spec.requests is None and isinstance(spec.arrivals, VaryingArrivals):
        assert spec.duration is not None
        expected = spec.arrivals.expected(spec.duration)
        if expected > MOST_REQUESTS:
            raise mistake(
                f"about {expected:,.0f} requests; at most {MOST_REQUESTS:,} can be simulated", "mix", i, "duration"
            )
    if spec.duration is None and isinstance(spec.arrivals, PoissonArrivals | GammaArrivals | ConstantArrivals):
        assert spec.requests is not None
        if spec.requests / spec.arrivals.rate > MOST_SECONDS:
            raise mistake(
                f"{spec.requests:,} requests would come for {spec.requests / spec.arrivals.rate:.3g} s; at most "
                f"{MOST_SECONDS:g} s can be simulated: give a higher rate, or fewer requests",
                *("mix", i, "arrivals", "rate"),
            )


def expand_workload(value: Any) -> Any:
    """One workload, or a list of them, as a mix."""
    if isinstance(value, Mapping):
        return value if "mix" in value else {"mix": [value]}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {"mix": value}
    return {"mix": [value]} if isinstance(value, WorkloadSpec) else value


Workloads = Annotated[
    MixSpec,
    BeforeValidator(expand_workload, json_schema_input_type=WorkloadSpec | list[WorkloadSpec] | MixSpec),
]
