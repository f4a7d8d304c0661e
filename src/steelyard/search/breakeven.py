"""The price at which another GPU type in a pool gives the same tokens per dollar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from steelyard.errors import UserError, did_you_mean
from steelyard.hardware import find_gpu
from steelyard.scenario import PoolSpec, Scenario
from steelyard.search.capacity import largest_rate
from steelyard.search.limits import check_limits
from steelyard.search.loads import Load
from steelyard.sim.setup import set_up
from steelyard.sim.workers import run_all

_DEGREES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class BreakEven:
    """Two fleets that differ in the GPU type of a pool, and the price that makes them equal per token."""

    pool: str
    gpu: str  # the other type
    gpus: int  # of the pool, either way
    tp: int  # of the other type's engines
    own_gpu: str
    own_rate: float
    other_rate: float
    own_usd_per_hour: float  # of the whole fleet
    rest_usd_per_hour: float  # of its other pools
    catalog_price: float  # of the other type, per GPU and hour
    refused: str = ""  # why the other type cannot work

    @property
    def price(self) -> float | None:
        """US dollars per GPU and hour; None if there is none, however low."""
        if not self.own_rate or not self.other_rate:
            return None
        left = self.own_usd_per_hour * self.other_rate / self.own_rate - self.rest_usd_per_hour
        return left / self.gpus if left > 0 else None


def break_even(
    scenario: Scenario, asked: str, workers: int = 0, progress: Callable[[int, int], None] | None = None
) -> BreakEven:
    """``asked`` is POOL=GPU. As many GPUs of the other type are laid out in the way that carries most."""
    check_limits(scenario)
    pool, gpu = _asked(scenario, asked)
    load, setup = Load(scenario), set_up(scenario)
    own = largest_rate(setup, load).rate
    if not own:
        raise UserError(
            f"{scenario.source}: its own fleet carries no rate within its limits, so there is no break-even"
        )
    candidates = list(_candidates(scenario, pool, gpu))
    best: tuple[float, int] = 0.0, pool.tp
    refusals = []
    measured = run_all(_measured, [each for _, each in candidates], workers)
    for done, ((tp, _), (rate, refused)) in enumerate(zip(candidates, measured, strict=True), 1):
        best = max(best, (rate, tp), key=lambda each: each[0])
        refusals += [refused] if refused else []
        if progress is not None:
            progress(done, len(candidates))
    (held,) = [each for each in setup.pools if each.pool.name == pool.name]
    return BreakEven(
        pool=pool.name,
        gpu=gpu,
        gpus=held.gpus,
        tp=best[1],
        own_gpu=pool.gpu,
        own_rate=own,
        other_rate=best[0],
        own_usd_per_hour=sum(each.gpus * each.price_per_hour for each in setup.pools),
        rest_usd_per_hour=sum(each.gpus * each.price_per_hour for each in setup.pools if each is not held),
        catalog_price=find_gpu(gpu).price_per_hour,
        refused=refusals[0] if len(refusals) == len(candidates) else "",
    )


def _asked(scenario: Scenario, asked: str) -> tuple[PoolSpec, str]:
    name, equals, gpu = (part.strip() for part in asked.partition("="))
    pools = {pool.name: pool for pool in scenario.fleet.pools}
    if not equals or not name or not gpu:
        raise UserError(f"--break-even {asked}: must read POOL=GPU, such as {next(iter(pools))}=h20")
    if name not in pools:
        raise UserError(f"--break-even {asked}: no pool is called {name}; {did_you_mean(name, pools)}")
    try:
        return pools[name], find_gpu(gpu).name
    except UserError as error:
        raise UserError(f"--break-even {asked}: {error}") from None


def _candidates(scenario: Scenario, pool: PoolSpec, gpu: str) -> Iterator[tuple[int, Scenario]]:
    """The scenario with the other GPU type in a pool: the pool's own layout, then others of as many GPUs."""
    total = pool.replicas * pool.tp
    for tp in dict.fromkeys((pool.tp, *_DEGREES)):
        if total % tp == 0:
            written = scenario.fleet.model_dump(exclude_unset=True)
            (each,) = [each for each, spec in zip(written["pools"], scenario.fleet.pools, strict=True) if spec is pool]
            each.pop("price_per_hour", None)
            each |= {"gpu": gpu, "tp": tp, "replicas": total // tp}
            try:
                yield tp, scenario.replace(fleet=written)
            except UserError:
                continue  # replicas that do not divide into units, or a pool with dcp


def _measured(scenario: Scenario) -> tuple[float, str]:
    """The largest rate, or why the fleet cannot work."""
    try:
        return largest_rate(set_up(scenario), Load(scenario)).rate, ""
    except UserError as error:
        return 0.0, "; ".join(error.args)
