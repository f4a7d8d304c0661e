"""Faults of a fleet during a run: crashes, slow GPUs, degraded links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field, model_validator

from steelyard.errors import did_you_mean
from steelyard.scenario.base import Spec, mistake
from steelyard.scenario.fleet import FleetSpec, PoolSpec
from steelyard.scenario.numbers import Place, PositiveSeconds, Remainder, Seconds, Slowdown

_POOL = "Name of the pool."
_TIED = "only engines that step on their own crash, slow down or are scaled"


class CrashSpec(Spec):
    """An engine crashes. Everything on it is lost. Its requests start over, elsewhere or here after a restart."""

    pool: str = Field(default="serve", description=_POOL)
    replica: Place = Field(default=0, description="Which of the pool's replicas, from 0.")
    restart_after: Seconds | None = Field(
        default=None, description="Seconds until the engine serves again; never if not given."
    )


class SlowSpec(Spec):
    """GPUs on which every step takes longer."""

    pool: str = Field(default="serve", description=_POOL)
    replica: Place | None = Field(default=None, description="Which of the pool's replicas, from 0; all if not given.")
    factor: Slowdown = Field(description="Factor on GPU time: with 1.5 a step takes 50 % longer.")


class LinkSpec(Spec):
    """Links between prefill and decode engines with less than their bandwidth."""

    pool: str = Field(description=_POOL)
    replica: Place | None = Field(default=None, description="Which of the pool's replicas, from 0; all if not given.")
    of: Literal["nic", "nvlink"] = Field(
        default="nic", description="nic: links to other nodes; nvlink: links within the node."
    )
    factor: Remainder = Field(description="Factor on bandwidth: 0.1 leaves a tenth.")


class ChangeSpec(Spec):
    """One fault: a crash, slow GPUs or degraded links."""

    at: Seconds = Field(description="Seconds since the start.")
    until: PositiveSeconds | None = Field(
        default=None, description="Second at which slow or link ends; never if left out."
    )
    crash: CrashSpec | None = Field(default=None, description="An engine crashes.")
    slow: SlowSpec | None = Field(default=None, description="GPUs get slower.")
    link: LinkSpec | None = Field(default=None, description="Links lose bandwidth.")

    @model_validator(mode="after")
    def _one_thing(self) -> ChangeSpec:
        given = list(self.given())
        if len(given) != 1:
            found = "none" if not given else " and ".join(given)
            raise mistake(f"give one of crash, slow and link, and each its own entry; found {found}")
        if self.until is not None and self.crash is not None:
            raise mistake("a crash is over when the engine is back; give crash.restart_after instead", "until")
        if self.until is not None and self.until <= self.at:
            raise mistake(f"not after its begin at {self.at:g}", "until")
        return self

    def given(self) -> dict[str, CrashSpec | SlowSpec | LinkSpec]:
        """The fault by its kind."""
        found = {"crash": self.crash, "slow": self.slow, "link": self.link}
        return {name: what for name, what in found.items() if what is not None}


def check_dynamics(fleet: FleetSpec, changes: tuple[ChangeSpec, ...], model_of: Callable[[PoolSpec], str]) -> None:
    """Refuse faults and autoscaling that do not fit this fleet."""
    for i, pool in enumerate(fleet.pools):
        _check_autoscale(i, pool)
    gone: dict[str, set[int]] = {pool.name: set() for pool in fleet.pools}
    for i, change in enumerate(changes):
        ((kind, what),) = change.given().items()
        pool = _pool_of(fleet, what, "dynamics", i, kind)
        if isinstance(what, CrashSpec) and what.restart_after is None:
            gone[pool.name].add(what.replica)
            role = [each for each in fleet.of_role(pool.role) if model_of(each) == model_of(pool)]
            if all(len(gone[each.name]) >= each.replicas and not each.autoscale for each in role):
                raise mistake(
                    f"missing; no replica of role {pool.role} would be left for good",
                    *("dynamics", i, kind, "restart_after"),
                )


def _pool_of(fleet: FleetSpec, what: CrashSpec | SlowSpec | LinkSpec, *place: str | int) -> PoolSpec:
    """The pool of a fault. Refuses pools and replicas for which it is not simulated."""
    pools = {pool.name: pool for pool in fleet.pools}
    if what.pool not in pools:
        raise mistake(f"no pool is called that; {did_you_mean(what.pool, pools)}", *place, "pool")
    pool = pools[what.pool]
    most = pool.replicas if pool.autoscale is None else pool.autoscale.max
    if what.replica is not None and what.replica >= most:
        raise mistake(f"pool {pool.name} has replicas 0 to {most - 1}", *place, "replica")
    if isinstance(what, LinkSpec):
        if pool.role not in ("prefill", "decode"):
            raise mistake(
                f"links are simulated between prefill and decode pools; this one has role {pool.role}", *place, "pool"
            )
    elif pool.dp > 1 or pool.role in ("attention", "ffn"):
        raise mistake(f"{_TIED}; pool {pool.name} has {_ties(pool)}", *place, "pool")
    elif isinstance(what, SlowSpec) and pool.pp > 1:
        raise mistake(f"engines of several stages do not slow down; pool {pool.name} has pp {pool.pp}", *place, "pool")
    return pool


def _check_autoscale(i: int, pool: PoolSpec) -> None:
    scale = pool.autoscale
    if scale is None:
        return
    place = ("fleet", "pools", i)
    if not scale.min <= pool.replicas <= scale.max:
        raise mistake(f"not within autoscale min {scale.min} and max {scale.max}", *place, "replicas")
    if pool.dp > 1 or pool.role in ("attention", "ffn"):
        raise mistake(f"{_TIED}; pool {pool.name} has {_ties(pool)}", *place, "autoscale")
    for metric, role, limit in (("ttft", "decode", scale.ttft), ("tpot", "prefill", scale.tpot)):
        if pool.role == role and limit is not None:
            raise mistake(f"a {role} pool has no {metric} of its own", *place, "autoscale", metric)


def _ties(pool: PoolSpec) -> str:
    return f"dp {pool.dp}" if pool.dp > 1 else f"role {pool.role}"
