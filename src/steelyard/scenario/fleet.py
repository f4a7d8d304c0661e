"""What serves: GPUs in replicas, and the router before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from steelyard.scenario.base import Count, NonNegative, Spec, mistake, refuse_unknown_keys

RouterName = Literal["round-robin", "random", "least-outstanding", "power-of-two", "sticky", "prefix-aware"]

_GPU = "GPU type, by its name in the catalog (`steelyard gpus`)."
_REPLICAS = "Engines side by side."
_TP = "GPUs per engine (tensor parallel)."
_PRICE = "US dollars per GPU and hour; the catalog's price if not given."
_ROUTER = (
    "How a request finds its replica: in turn, at random, fewest unfinished requests, the better of two "
    "random ones, the session's own, or the one that holds most of its prefix."
)


class PoolSpec(Spec):
    """Engines of one kind."""

    name: str = Field(default="serve", min_length=1, description="Label in the results.")
    role: Literal["serve"] = Field(default="serve", description="What the pool does: serve means prefill and decode.")
    gpu: str = Field(min_length=1, description=_GPU)
    replicas: Count = Field(default=1, description=_REPLICAS)
    tp: Count = Field(default=1, description=_TP)
    price_per_hour: NonNegative | None = Field(default=None, description=_PRICE)


class ShortFleet(Spec):
    """The short form of a fleet with one pool of role serve."""

    gpu: str = Field(min_length=1, description=_GPU)
    replicas: Count = Field(default=1, description=_REPLICAS)
    tp: Count = Field(default=1, description=_TP)
    price_per_hour: NonNegative | None = Field(default=None, description=_PRICE)
    router: RouterName = Field(default="round-robin", description=_ROUTER)


class FleetSpec(Spec):
    """The whole fleet. At present it has exactly one pool, of role serve."""

    pools: tuple[PoolSpec, ...] = Field(min_length=1, description="The pools of engines.")
    router: RouterName = Field(default="round-robin", description=_ROUTER)

    @model_validator(mode="after")
    def _one_pool(self) -> FleetSpec:
        if len(self.pools) > 1:
            raise mistake(
                f"{len(self.pools)} pools given; give one pool of role serve (others are not simulated yet)",
                "pools",
            )
        return self


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
