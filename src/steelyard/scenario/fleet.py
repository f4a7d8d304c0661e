"""What serves: GPUs in replicas, in pools with a role each, and the router before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from steelyard.scenario.base import Count, NonNegative, Spec, mistake, refuse_unknown_keys
from steelyard.scenario.engine import EngineSpec

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
Role = Literal["serve", "prefill", "decode"]

_GPU = "GPU type, by its name in the catalog (`steelyard gpus`)."
_REPLICAS = "Engines side by side."
_TP = "GPUs per engine (tensor parallel)."
_PRICE = "US dollars per GPU and hour; the catalog's price if not given."
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
        "once their prompt is computed.",
    )
    gpu: str = Field(min_length=1, description=_GPU)
    replicas: Count = Field(default=1, description=_REPLICAS)
    tp: Count = Field(default=1, description=_TP)
    price_per_hour: NonNegative | None = Field(default=None, description=_PRICE)
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
    replicas: Count = Field(default=1, description=_REPLICAS)
    tp: Count = Field(default=1, description=_TP)
    price_per_hour: NonNegative | None = Field(default=None, description=_PRICE)
    router: RouterName = Field(default="round-robin", description=_ROUTER)


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


class FleetSpec(Spec):
    """The whole fleet: pools that serve, or pools that prefill and others that decode."""

    pools: tuple[PoolSpec, ...] = Field(min_length=1, description="The pools of engines.")
    router: RouterName = Field(default="round-robin", description=_ROUTER)
    decode_router: RouterName = Field(
        default="least-outstanding", description="The same for the way from prefill to decode engines."
    )
    transfer: TransferSpec = Field(default=TransferSpec(), description="From prefill to decode engines.")

    @model_validator(mode="after")
    def _roles_go_together(self) -> FleetSpec:
        roles = {pool.role for pool in self.pools}
        if "serve" in roles and len(roles) > 1:
            raise mistake("pools that serve stand alone; give either serve pools, or prefill and decode pools", "pools")
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            if role in roles and other not in roles:
                raise mistake(f"a {role} pool needs a {other} pool beside it; give one, or role serve", "pools")
        names = [pool.name for pool in self.pools]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise mistake(f"two pools are called {name}; give each a name of its own", "pools", i, "name")
        return self

    def of_role(self, *roles: Role) -> tuple[PoolSpec, ...]:
        """The pools that do one of these."""
        return tuple(pool for pool in self.pools if pool.role in roles)


def expand_fleet(value: Any) -> Any:
    """The short form as a fleet of one pool."""
    if not isinstance(value, Mapping):
        return value
    if "pools" not in value:
        refuse_unknown_keys(value, ShortFleet.model_fields)
        pool = {key: each for key, each in value.items() if key != "router"}
        return {"pools": [pool], **{key: value[key] for key in ("router",) if key in value}}
    for key in value:
        if key in ShortFleet.model_fields and key != "router":
            raise mistake("belongs into a pool: give either pools, or gpu, replicas and tp without pools", key)
    return value


Fleet = Annotated[FleetSpec, BeforeValidator(expand_fleet, json_schema_input_type=ShortFleet | FleetSpec)]
