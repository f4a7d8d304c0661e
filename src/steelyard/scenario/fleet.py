"""The fleet: pools of replicas, their roles, and the router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from steelyard.scenario.autoscale import AutoscaleSpec
from steelyard.scenario.base import Spec, mistake, refuse_unknown_keys
from steelyard.scenario.engine import EngineSpec
from steelyard.scenario.model import Model
from steelyard.scenario.numbers import (
    MOST_REPLICAS,
    Amount,
    Degree,
    Few,
    FewOrZero,
    Ranks,
    Replicas,
    Stages,
    Weight,
    unit,
)
from steelyard.scenario.topology import TopologySpec

RouterName = Literal[
    "round-robin",
    "random",
    "least-outstanding",
    "power-of-two",
    "sticky",
    "sticky-spill",
    "prefix-aware",
    "kv-aware",
    "slo-aware",
]
PoolRouterName = Literal["least-loaded", "weighted"]
Role = Literal["serve", "prefill", "decode", "attention", "ffn"]

_GPU = "GPU type, by its name in the catalog (`steelyard gpus`)."
_REPLICAS = "Number of engines."
_TP = "GPUs per engine (tensor parallel)."
_PP = "Pipeline stages of an engine (pipeline parallel)."
_DP = (
    "Data-parallel ranks of an engine. Each has its own requests and KV cache; they step together and share the routed "
    "experts (data-parallel attention). Results and routers count each rank as a replica."
)
_DCP = (
    "GPUs of a tensor-parallel group that split the cached tokens, instead of a copy on each (decode context "
    "parallel). A block then holds dcp times as many tokens."
)
_EP = "Whether each of an engine's tp x dp GPUs holds whole experts, instead of a slice of every expert."
_REDUNDANT = "Additional copies of the busiest experts, with expert_parallel."
_ALL2ALL = "Backend that sends tokens to experts of other ranks, by vLLM's names."
All2AllName = Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"]
_AUTOSCALE = "Autoscaling; `replicas` is then the number at the start."
_PRICE = "US dollars per GPU and hour; the catalog's price if not given."
_TOPOLOGY = "How GPUs are wired; the usual nodes of the GPU if not given."
_ROUTER = (
    "Policy that chooses a replica: in turn, at random, fewest unfinished requests, the better of two random replicas, "
    "the session's last one (sticky-spill: unless that is much busier than others), the one with the longest cached "
    "prefix, fewest blocks to compute and in use (kv-aware), or the busiest that still meets slo.ttft (slo-aware)."
)


class PoolSpec(Spec):
    """Engines of one kind."""

    name: str = Field(default="serve", min_length=1, description="Label in the results; the role if not given.")
    role: Role = Field(
        default="serve",
        description="serve: prefill and decode; prefill: hands requests over to decode pools when their prompt is "
        "computed; attention and ffn: split the layers of one model, in place of serve or decode (see `afd`).",
    )
    model: Model | None = Field(
        default=None,
        description="The model that this pool serves; the scenario's own if not given. Not for attention and ffn. "
        "Requests go to pools of the model they ask for (`model` of a workload).",
    )
    weight: Weight | None = Field(
        default=None,
        description="Relative capacity, for `pool_router`. Give one to every pool of a role, or to none. If not given: "
        "GPUs times memory bandwidth; in prefill pools, GPUs times peak arithmetic.",
    )
    gpu: str = Field(min_length=1, description=_GPU)
    replicas: Replicas = Field(default=1, description=_REPLICAS)
    tp: Degree = Field(default=1, description=_TP)
    pp: Stages = Field(default=1, description=_PP)
    dp: Ranks = Field(default=1, description=_DP)
    dcp: Degree = Field(default=1, description=_DCP)
    expert_parallel: bool = Field(default=False, description=_EP)
    redundant_experts: FewOrZero = Field(default=0, description=_REDUNDANT, json_schema_extra=unit("experts"))
    all2all: All2AllName = Field(default="allgather_reducescatter", description=_ALL2ALL)
    price_per_hour: Amount | None = Field(default=None, description=_PRICE, json_schema_extra=unit("USD/h"))
    autoscale: AutoscaleSpec | None = Field(default=None, description=_AUTOSCALE)
    engine: EngineSpec | None = Field(
        default=None, description="Settings of this pool's engines where they differ from the scenario's `engine`."
    )

    @model_validator(mode="before")
    @classmethod
    def _called_by_its_role(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "name" not in data and isinstance(data.get("role"), str):
            return {**data, "name": data["role"]}
        return data


class ShortFleet(Spec):
    """The short form of a fleet with one pool of role serve."""

    gpu: str = Field(min_length=1, description=_GPU)
    replicas: Replicas = Field(default=1, description=_REPLICAS)
    tp: Degree = Field(default=1, description=_TP)
    pp: Stages = Field(default=1, description=_PP)
    dp: Ranks = Field(default=1, description=_DP)
    dcp: Degree = Field(default=1, description=_DCP)
    expert_parallel: bool = Field(default=False, description=_EP)
    redundant_experts: FewOrZero = Field(default=0, description=_REDUNDANT, json_schema_extra=unit("experts"))
    all2all: All2AllName = Field(default="allgather_reducescatter", description=_ALL2ALL)
    price_per_hour: Amount | None = Field(default=None, description=_PRICE, json_schema_extra=unit("USD/h"))
    autoscale: AutoscaleSpec | None = Field(default=None, description=_AUTOSCALE)
    router: RouterName = Field(default="round-robin", description=_ROUTER)
    topology: TopologySpec | None = Field(default=None, description=_TOPOLOGY)


class TransferSpec(Spec):
    """How the KV cache of a request is sent from its prefill to its decode engine."""

    layerwise: bool = Field(
        default=False,
        description="Send the KV cache layer by layer during prefill, instead of all of it afterwards.",
    )
    first_token: Literal["decode", "prefill"] = Field(
        default="decode",
        description="Engine that produces the first token. decode: it computes the prompt's last token again (vLLM); "
        "prefill: the token is sent along with the KV cache (SGLang, Dynamo).",
    )


class AfdWays(Spec):
    """How tokens get to the FFN side of a unit, and how its GPUs share an expert that all tokens need."""

    send_dtype: Literal["auto", "fp8"] = Field(
        default="auto",
        description="Type of activations on their way to the FFN side. auto: the model's; fp8: 8 bits, with a scale "
        "for every 128 values. Results return in the model's type.",
    )
    shared_experts: Literal["copied", "sliced"] = Field(
        default="copied",
        description="Shared experts of an FFN GPU. copied: it has all of them; sliced: the GPUs of a node have a slice "
        "each, gather each other's tokens and sum up what comes out.",
    )


class AfdSpec(AfdWays):
    """How attention and ffn pools work together (attention/FFN disaggregation)."""

    units: Degree = Field(
        default=1,
        description="Units that both pools are divided into. A unit has one scheduler. Requests and KV blocks are "
        "spread evenly over its attention replicas.",
        json_schema_extra=unit("units"),
    )
    micro_batches: Few = Field(
        default=2,
        description="Parts of a step's batch that alternate between the two sides, so that both work at the same time.",
        json_schema_extra=unit("micro-batches"),
    )


class FleetSpec(Spec):
    """The whole fleet: pools of role serve, or pools of roles prefill and decode (or attention and ffn)."""

    pools: tuple[PoolSpec, ...] = Field(min_length=1, max_length=1000, description="The pools of engines.")
    router: RouterName = Field(default="round-robin", description=_ROUTER)
    pool_router: PoolRouterName | None = Field(
        default=None,
        description="Policy that chooses a pool before `router` chooses among its replicas. least-loaded: fewest "
        "unfinished requests per weight; weighted: in turn, in proportion to weights. If not given, `router` chooses "
        "among the replicas of all pools.",
    )
    decode_router: RouterName = Field(
        default="least-outstanding",
        description="Policy that chooses the decode replica of a computed prompt; values as for `router`.",
    )
    transfer: TransferSpec = Field(default=TransferSpec(), description="KV transfer from prefill to decode engines.")
    afd: AfdSpec = Field(default=AfdSpec(), description="Attention/FFN disaggregation.")
    topology: TopologySpec | None = Field(default=None, description=_TOPOLOGY)

    @model_validator(mode="after")
    def _roles_go_together(self) -> FleetSpec:
        roles = {pool.role for pool in self.pools}
        if "serve" in roles and len(roles) > 1:
            raise mistake("pools that serve stand alone; give either serve pools, or prefill and decode pools", "pools")
        self._check_units(roles)
        decode = "attention" if "attention" in roles else "decode"
        for role, other in (("prefill", decode), ("decode", "prefill")):
            if role in roles and other not in roles:
                raise mistake(f"a {role} pool needs a {other} pool beside it; give one, or role serve", "pools")
        names = [pool.name for pool in self.pools]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise mistake(f"two pools are called {name}; give each a name of its own", "pools", i, "name")
        self._check_choices()
        self._check_size()
        return self

    def _check_size(self) -> None:
        """Each data-parallel rank is an engine of its own in memory."""
        engines = 0
        for i, pool in enumerate(self.pools):
            replicas = pool.replicas if pool.autoscale is None else pool.autoscale.max
            engines += replicas * pool.dp
            if engines > MOST_REPLICAS:
                raise mistake(
                    f"{engines:,} engines in all, replicas times dp; at most {MOST_REPLICAS:,} can be simulated",
                    *("pools", i, "replicas"),
                )

    def _check_choices(self) -> None:
        """Check weights, models and context parallelism of pools."""
        for i, pool in enumerate(self.pools):
            if pool.model is not None and pool.role in ("attention", "ffn"):
                raise mistake(f"a pool of role {pool.role} serves the scenario's model", "pools", i, "model")
            if pool.dcp > 1 and pool.role != "serve":
                raise mistake("only pools of role serve split cached tokens; leave it out", "pools", i, "dcp")
            if pool.weight is not None and self.pool_router is None:
                raise mistake("nothing asks for it; set fleet.pool_router, or leave it out", "pools", i, "weight")
            if pool.weight is None and any(each.weight is not None for each in self.of_role(pool.role)):
                raise mistake(f"missing; give every pool of role {pool.role} a weight, or none", "pools", i, "weight")

    def _check_units(self, roles: set[Role]) -> None:
        """Check attention and FFN pools: one of each, and replicas that divide into units."""
        if not roles & {"attention", "ffn"}:
            if self.afd != AfdSpec():
                raise mistake("there is no attention and no ffn pool that it could be about", "afd")
            return
        attention, ffn = len(self.of_role("attention")), len(self.of_role("ffn"))
        if (attention, ffn) != (1, 1):
            raise mistake(f"one attention pool goes with one ffn pool; found {attention} and {ffn}", "pools")
        if "decode" in roles:
            raise mistake("attention and ffn pools take the place of decode pools; give one or the other", "pools")
        for i, pool in enumerate(self.pools):
            if pool.role not in ("attention", "ffn"):
                continue
            if pool.replicas % self.afd.units:
                raise mistake(
                    f"{pool.replicas} replicas cannot be cut into {self.afd.units} units; use a multiple (afd.units)",
                    *("pools", i, "replicas"),
                )
            for key, found in (("pp", pool.pp), ("dp", pool.dp)):
                if found > 1:
                    raise mistake(f"a pool of role {pool.role} has replicas and tp only; leave it out", "pools", i, key)

    def of_role(self, *roles: Role) -> tuple[PoolSpec, ...]:
        """The pools of these roles."""
        return tuple(pool for pool in self.pools if pool.role in roles)


def expand_fleet(value: Any) -> Any:
    """The short form as a fleet of one pool."""
    if not isinstance(value, Mapping):
        return value
    if "pools" not in value:
        refuse_unknown_keys(value, ShortFleet.model_fields)
        pool = {key: each for key, each in value.items() if key not in FleetSpec.model_fields}
        return {"pools": [pool], **{key: each for key, each in value.items() if key in FleetSpec.model_fields}}
    for key in value:
        if key in ShortFleet.model_fields and key not in FleetSpec.model_fields:
            raise mistake("belongs into a pool: give either pools, or gpu, replicas and tp without pools", key)
    return value


Fleet = Annotated[FleetSpec, BeforeValidator(expand_fleet, json_schema_input_type=ShortFleet | FleetSpec)]
