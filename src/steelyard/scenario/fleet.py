"""What serves: GPUs in replicas, in pools with a role each, and the router before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from steelyard.scenario.autoscale import AutoscaleSpec
from steelyard.scenario.base import Count, NonNegative, Positive, Replicas, Spec, Whole, mistake, refuse_unknown_keys
from steelyard.scenario.engine import EngineSpec
from steelyard.scenario.model import Model
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
_REPLICAS = "Engines side by side."
_TP = "GPUs per engine (tensor parallel)."
_PP = "Stages that an engine's layers are dealt out to (pipeline parallel)."
_DP = (
    "Ranks of an engine with requests and a cache of their own, which step together and share the routed experts "
    "(data-parallel attention). Results and routers count each rank as a replica."
)
_DCP = (
    "GPUs of a tensor-parallel group that cached tokens are dealt out to, where each would have a copy of them (decode "
    "context parallel): a block then holds dcp times as many tokens."
)
_EP = "Whether whole experts are dealt out to an engine's tp x dp GPUs, instead of a slice of each to all."
_REDUNDANT = "Further copies of the busiest experts, with expert_parallel."
_ALL2ALL = "How tokens get to experts of other ranks, by vLLM's names."
All2AllName = Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"]
_AUTOSCALE = "How the number of replicas changes by itself; then `replicas` is how many there are at the start."
_PRICE = "US dollars per GPU and hour; the catalog's price if not given."
_TOPOLOGY = "How GPUs are wired; the usual nodes of the GPU if not given."
_ROUTER = (
    "How a request finds its replica: in turn, at random, fewest unfinished requests, the better of two random ones, "
    "the session's own (sticky-spill: unless that is much busier than others), the one that holds most of its prefix, "
    "least blocks to compute and in use (kv-aware), or the busiest that still meets slo.ttft (slo-aware)."
)


class PoolSpec(Spec):
    """Engines of one kind."""

    name: str = Field(default="serve", min_length=1, description="Label in the results; the role if not given.")
    role: Role = Field(
        default="serve",
        description="What the pool does: serve means prefill and decode; prefill hands requests to decode pools "
        "once their prompt is computed; attention and ffn share the layers of one model, in place of serve or decode "
        "(see `afd`).",
    )
    model: Model | None = Field(
        default=None,
        description="The model that this pool serves, where it is not the scenario's own; not for attention and ffn. "
        "Requests go to pools of the model they ask for (`model` of a workload).",
    )
    weight: Positive | None = Field(
        default=None,
        description="What the pool bears next to others, for `pool_router`: give one to every pool of a role, or to "
        "none. If not given, its GPUs times their memory bandwidth, of prefill pools times their peak arithmetic.",
    )
    gpu: str = Field(min_length=1, description=_GPU)
    replicas: Replicas = Field(default=1, description=_REPLICAS)
    tp: Count = Field(default=1, description=_TP)
    pp: Count = Field(default=1, description=_PP)
    dp: Count = Field(default=1, description=_DP)
    dcp: Count = Field(default=1, description=_DCP)
    expert_parallel: bool = Field(default=False, description=_EP)
    redundant_experts: Whole = Field(default=0, description=_REDUNDANT)
    all2all: All2AllName = Field(default="allgather_reducescatter", description=_ALL2ALL)
    price_per_hour: NonNegative | None = Field(default=None, description=_PRICE)
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
    tp: Count = Field(default=1, description=_TP)
    pp: Count = Field(default=1, description=_PP)
    dp: Count = Field(default=1, description=_DP)
    dcp: Count = Field(default=1, description=_DCP)
    expert_parallel: bool = Field(default=False, description=_EP)
    redundant_experts: Whole = Field(default=0, description=_REDUNDANT)
    all2all: All2AllName = Field(default="allgather_reducescatter", description=_ALL2ALL)
    price_per_hour: NonNegative | None = Field(default=None, description=_PRICE)
    autoscale: AutoscaleSpec | None = Field(default=None, description=_AUTOSCALE)
    router: RouterName = Field(default="round-robin", description=_ROUTER)
    topology: TopologySpec | None = Field(default=None, description=_TOPOLOGY)


class TransferSpec(Spec):
    """How a request's keys and values get from a prefill to a decode engine."""

    layerwise: bool = Field(
        default=False,
        description="Send each layer's as soon as it is computed, beside the rest of the prompt, instead of all "
        "of them after it.",
    )
    first_token: Literal["decode", "prefill"] = Field(
        default="decode",
        description="Who gives the first token: the decode engine, which computes the prompt's last token again "
        "(vLLM), or the prefill engine, which sends it along (SGLang, Dynamo).",
    )


class AfdSpec(Spec):
    """How attention and ffn pools work together (attention/FFN disaggregation)."""

    units: Count = Field(
        default=1,
        description="Equal parts that both pools are cut into. A unit has one scheduler: requests and KV blocks are "
        "spread evenly over its attention replicas, and each is taken to fit wherever it comes to lie.",
    )
    micro_batches: Count = Field(
        default=2, description="Parts of a step's batch in flight, so that one side works while the other waits."
    )


class FleetSpec(Spec):
    """The whole fleet: pools that serve, or pools that prefill and others that decode."""

    pools: tuple[PoolSpec, ...] = Field(min_length=1, description="The pools of engines.")
    router: RouterName = Field(default="round-robin", description=_ROUTER)
    pool_router: PoolRouterName | None = Field(
        default=None,
        description="Chooses a pool before `router` chooses among its replicas: the one with the fewest unfinished "
        "requests for its weight (least-loaded), or each in turn as often as its weight says (weighted). If not given, "
        "`router` chooses among the replicas of all pools as if they were alike.",
    )
    decode_router: RouterName = Field(
        default="least-outstanding", description="The same for the way from prefill to decode engines."
    )
    transfer: TransferSpec = Field(default=TransferSpec(), description="From prefill to decode engines.")
    afd: AfdSpec = Field(default=AfdSpec(), description="Between attention and ffn pools.")
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
        return self

    def _check_choices(self) -> None:
        """Weights are comparable, and units have the scenario's model."""
        for i, pool in enumerate(self.pools):
            if pool.model is not None and pool.role in ("attention", "ffn"):
                raise mistake(f"a pool of role {pool.role} serves the scenario's model", "pools", i, "model")
            if pool.dcp > 1 and pool.role != "serve":
                raise mistake("tokens are dealt out in pools of role serve only; leave it out", "pools", i, "dcp")
            if pool.weight is not None and self.pool_router is None:
                raise mistake("nothing asks for it; set fleet.pool_router, or leave it out", "pools", i, "weight")
            if pool.weight is None and any(each.weight is not None for each in self.of_role(pool.role)):
                raise mistake(f"missing; give every pool of role {pool.role} a weight, or none", "pools", i, "weight")

    def _check_units(self, roles: set[Role]) -> None:
        """Attention and FFN pools go together, one of each, and both divide into units."""
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
        """The pools that do one of these."""
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
