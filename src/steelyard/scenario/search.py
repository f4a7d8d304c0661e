"""A search: a serving scenario without a fleet, and the fleets to choose from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from steelyard.scenario.base import Spec, Written, mistake
from steelyard.scenario.engine import EngineSpec
from steelyard.scenario.fleet import AfdWays, All2AllName, RouterName, TransferSpec
from steelyard.scenario.model import Model
from steelyard.scenario.numbers import (
    Amount,
    Degree,
    Few,
    FewOrZero,
    Groups,
    PartShare,
    PositiveSeconds,
    PositiveShare,
    Ranks,
    Replicas,
    Seed,
    Stages,
    unit,
)
from steelyard.scenario.scenario import CostSpec
from steelyard.scenario.slo import SloSpec
from steelyard.scenario.topology import TopologySpec
from steelyard.scenario.workload import Workloads

_T = TypeVar("_T")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Choices = Annotated[tuple[_T, ...], BeforeValidator(_as_list), Field(min_length=1, max_length=1000)]
Architecture = Literal["co-located", "pdd", "afd", "pdd+afd"]
Objective = Literal["throughput", "per-gpu", "per-dollar", "per-watt", "cost"]
Quantization = Literal["none", "fp8", "fp8_block", "int8", "int4", "awq", "nvfp4", "mxfp4"]


class PoolChoices(Spec):
    """Kinds of engines of a role: every combination of these. A single value or a list of them."""

    gpu: Choices[str] = Field(description="GPU types.")
    tp: Choices[Degree] = Field(default=(1,), description="Tensor-parallel degrees.")
    pp: Choices[Stages] = Field(default=(1,), description="Pipeline stages.")
    dp: Choices[Ranks] = Field(default=(1,), description="Data-parallel ranks.")
    gpus: Choices[Degree] | None = Field(
        default=None, description="GPUs of an engine: only layouts of these sizes (tp x pp x dp) are considered."
    )
    expert_parallel: Choices[bool] = Field(default=(False,), description="Experts in parallel, or not.")
    redundant_experts: Choices[FewOrZero] = Field(
        default=(0,), description="Copies of the busiest experts.", json_schema_extra=unit("experts")
    )
    all2all: Choices[All2AllName] = Field(default=("allgather_reducescatter",), description="All-to-all backends.")
    instances: Choices[Replicas] = Field(
        default=(1,), description="Of attention and ffn: replicas of one unit. Other roles: leave it out."
    )
    price_per_hour: Amount | None = Field(
        default=None,
        description="US dollars per GPU and hour; the catalog's if not given.",
        json_schema_extra=unit("USD/h"),
    )
    engine: dict[str, Any] = Field(
        default_factory=dict,
        max_length=100,
        description="Engine settings, as in a scenario; a list is a choice.",
    )


class SearchSpec(Spec):
    """The fleets to choose from, and what makes one better."""

    gpus: Degree = Field(description="Most GPUs of the fleet.")
    objective: Objective = Field(
        default="throughput",
        description="throughput: most requests per second within the limits, with as many engines as fit; per-gpu, "
        "per-dollar, per-watt: the same over GPUs, price and power; cost: the cheapest fleet for the workload's rate.",
    )
    good: PositiveShare | None = Field(
        default=None,
        description="Goodput: a load is carried if this share of requests meets every limit of a single request, "
        "instead of the limits on percentiles.",
    )
    levels: dict[str, tuple[PositiveSeconds, ...]] = Field(
        default_factory=dict,
        max_length=1,
        description="Values of one limit, such as ttft_p95: [0.5, 3]: the search is answered for each.",
    )
    architectures: Choices[Architecture] | None = Field(
        default=None, description="Architectures to consider; all for which there are roles if not given."
    )
    serve: PoolChoices | None = Field(default=None, description="Engines that prefill and decode.")
    prefill: PoolChoices | None = Field(default=None, description="Prefill engines.")
    decode: PoolChoices | None = Field(default=None, description="Decode engines.")
    attention: PoolChoices | None = Field(default=None, description="Attention side of a unit.")
    ffn: PoolChoices | None = Field(default=None, description="FFN side of a unit.")
    prefill_share: Choices[PartShare] | None = Field(
        default=None,
        description="Shares of the GPUs that prefill, such as 0.5 (1:1) or 0.25 (2:6). Every split if not given.",
    )
    micro_batches: Choices[Few] = Field(
        default=(2,), description="Micro-batches of a unit.", json_schema_extra=unit("micro-batches")
    )
    afd: AfdWays = Field(default=AfdWays(), description="How the sides of all units work together, as in a fleet.")
    quantization: Choices[Quantization | None] = Field(default=(None,), description="Weight quantizations.")
    router: Choices[RouterName] = Field(default=("least-outstanding",), description="Routers.")
    transfer: TransferSpec = Field(default=TransferSpec(), description="KV transfer, as in a fleet.")
    topology: TopologySpec | None = Field(default=None, description="How GPUs are wired, as in a fleet.")
    seconds: PositiveSeconds = Field(default=60.0, description="Seconds of arrivals of a whole simulation.")
    requests: Groups = Field(
        default=1000,
        description="Fewest requests of a whole simulation.",
        json_schema_extra=unit("requests"),
    )

    @model_validator(mode="after")
    def _can_be_built(self) -> SearchSpec:
        for name in self.architectures or ():
            for role in ROLES[name]:
                if self.of(role) is None:
                    raise mistake(f"missing; {name} fleets need kinds of {role} engines", role)
        if not self.chosen():
            raise mistake("no fleet can be built; give serve, or prefill and decode, or attention and ffn")
        if self.afd != AfdWays() and not any("ffn" in ROLES[name] for name in self.chosen()):
            raise mistake("no fleet has units of attention and FFN; leave it out, or give attention and ffn", "afd")
        if self.prefill_share is not None and not any("prefill" in ROLES[name] for name in self.chosen()):
            raise mistake("no fleet has engines that only prefill; leave it out, or give prefill", "prefill_share")
        return self

    def units(self, count: int, micro_batches: int) -> dict[str, Any]:
        """How units work together, in the form of a scenario."""
        return {**self.afd.model_dump(exclude_unset=True), "units": count, "micro_batches": micro_batches}

    def of(self, role: str) -> PoolChoices | None:
        """The kinds of engines of a role."""
        found: PoolChoices | None = {
            "serve": self.serve,
            "prefill": self.prefill,
            "decode": self.decode,
            "attention": self.attention,
            "ffn": self.ffn,
        }[role]
        return found

    def chosen(self) -> tuple[Architecture, ...]:
        """The architectures to consider."""
        return self.architectures or tuple(
            name for name, roles in ROLES.items() if all(self.of(role) is not None for role in roles)
        )


ROLES: dict[Architecture, tuple[str, ...]] = {
    "co-located": ("serve",),
    "pdd": ("prefill", "decode"),
    "afd": ("attention", "ffn"),
    "pdd+afd": ("prefill", "attention", "ffn"),
}


class SearchScenario(Written):
    """Which fleet to buy for a model and a workload, within limits."""

    model: Model = Field(description="The model to serve.")
    engine: EngineSpec = Field(default=EngineSpec(), description="Settings of all engines, in vLLM's names.")
    workload: Workloads = Field(description="The requests: one workload, a list, or {mix: [...]}.")
    slo: SloSpec = Field(default=SloSpec(), description="Latency limits in seconds.")
    cost: CostSpec = Field(default=CostSpec(source="auto"), description="Where step times come from.")
    search: SearchSpec = Field(description="The fleets to choose from.")
    seed: Seed = Field(default=0, description="Seed of everything random.")

    @model_validator(mode="after")
    def _levels_are_limits(self) -> SearchScenario:
        known = {limit.name for limit in self.slo.on_run()}
        for name in self.search.levels:
            if name not in known:
                raise mistake(f"{name} is no limit of slo; name one of {', '.join(sorted(known))}", "search", "levels")
        return self
