"""KV-cache tiers below GPU memory: built from a scenario, and their use in the summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steelyard.engine import Engine
from steelyard.engine.tiers import Tier, TierLink, Tiers
from steelyard.errors import UserError
from steelyard.model import kv_bytes_per_token
from steelyard.scenario import TierSpec
from steelyard.sim.setup import FleetSetup, Setup
from steelyard.sim.summary import FoundInTier, PrefixCache

REMOTE = "remote"


def make_tiers(setup: FleetSetup) -> list[Tiers | None]:
    """The tiers of each replica. A remote tier is shared by all replicas that have one."""
    stores: dict[tuple[TierSpec, float], Tier] = {}
    found: list[Tiers | None] = []
    for each in setup.pools:
        specs = each.engine.tiers
        if specs:
            _check(setup, each)
        for _ in range(each.ranks):
            levels = []
            for i, spec in enumerate(specs):
                tier = _tier(setup, each, i, spec)
                levels.append(stores.setdefault((spec, tier.block_bytes), tier) if tier.shared else tier)
            found.append(Tiers(levels, each.limits.block_size) if levels else None)
    if len(stores) > 1:
        raise UserError(
            f"{setup.scenario.source}: fleet.pools: engines give different remote tiers, but all share one store; "
            "give all of them the same, and one kv_cache_dtype"
        )
    return found


def _check(setup: FleetSetup, each: Setup) -> None:
    place = f"{setup.scenario.source}: engine.tiers"
    if each.engine.scheduler == "sglang":
        raise UserError(f"{place}: only vLLM's scheduler knows tiers here; use scheduler: vllm, or no tiers")
    if each.pool.dp > 1:
        raise UserError(f"{place}: not for data-parallel ranks yet (dp: {each.pool.dp}); use dp: 1, or no tiers")


def _tier(setup: FleetSetup, each: Setup, place: int, spec: TierSpec) -> Tier:
    bytes_each = float(kv_bytes_per_token(each.model, each.engine.kv_cache_dtype) * each.limits.block_size)
    blocks = int(spec.size // bytes_each) if spec.size is not None else spec.blocks
    assert blocks is not None
    if spec.size and not blocks:
        raise UserError(
            f"{setup.scenario.source}: engine.tiers[{place}].size: {spec.size:.0f} bytes hold no block; one of "
            f"{each.limits.block_size} tokens has {bytes_each:.0f} bytes, and 0 is no tier"
        )
    read, write = (TierLink(rate, spec.latency) for rate in spec.rates)
    return Tier(spec.kind, blocks, bytes_each, read, write, spec.write == "through", spec.kind == REMOTE)


def by_tier(setup: FleetSetup, engines: Sequence[Engine], whole: PrefixCache, start: float, end: float) -> PrefixCache:
    """``whole``, the hits of all tiers, split by tier; unchanged if no engine has tiers.

    ``read_use`` and ``write_use`` are shares of the time from start to end that a tier's link was busy.
    """
    first = sum(
        each.ranks for each in setup.takes_requests
    )  # decode replicas get prompts that prefill replicas counted already
    tiers: dict[str, list[Tier]] = {}
    hits: dict[str, int] = {}
    for i, engine in enumerate(engines):
        for tier in () if engine.tiers is None else engine.tiers.levels:
            known = tiers.setdefault(tier.kind, [])
            if tier not in known:
                known.append(tier)
        if engine.tiers is not None and i < first:
            for kind, tokens in engine.tiers.hits.items():
                hits[kind] = hits.get(kind, 0) + tokens
    if not tiers:
        return whole
    here = max(0, whole.hit_tokens - sum(hits.values()))
    prompts = whole.prompt_tokens
    found = {"gpu": FoundInTier(hit_rate=here / prompts if prompts else 0.0, hit_tokens=here)}
    for kind, known in tiers.items():
        tokens = hits.get(kind, 0)
        found[kind] = FoundInTier(
            hit_rate=tokens / prompts if prompts else 0.0,
            hit_tokens=tokens,
            blocks=known[0].size,
            blocks_stored=sum(tier.stored for tier in known),
            blocks_turned_away=sum(tier.turned_away for tier in known),
            bytes_read=sum(tier.read.carried for tier in known),
            bytes_written=sum(tier.write.carried for tier in known),
            read_use=_use([tier.read for tier in known], start, end),
            write_use=_use([tier.write for tier in known], start, end),
        )
    return replace(whole, by_tier=found)


def _use(lanes: Sequence[TierLink], start: float, end: float) -> float:
    """What is sent after the end does not count."""
    if end <= start:
        return 0.0
    busy = sum(lane.carried / lane.bandwidth - max(0.0, lane.free - end) for lane in lanes)
    return busy / len(lanes) / (end - start)
