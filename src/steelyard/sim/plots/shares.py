"""Where the time of steps goes, where its figures come from, and where prompt tokens were found."""

from __future__ import annotations

from steelyard.plot import Axis, Bar, BarChart
from steelyard.plot.marks import Hue
from steelyard.sim.summary import PoolFigures, Summary
from steelyard.words import percent

_WORK: dict[str, tuple[str, Hue]] = {
    "attention": ("attention", "1"),
    "gemm": ("dense matrices (GEMM)", "3"),
    "experts": ("routed experts", "5"),
    "communication": ("communication between GPUs", "2"),
    "elementwise": ("norms, activations, sampling", "4"),
    "host": ("waiting for the host", "soft"),
}
_PROVENANCE: dict[str, tuple[str, Hue]] = {
    "measured": ("measured on this GPU", "3"),
    "interpolated": ("interpolated between them", "1"),
    "extrapolated": ("extrapolated beyond them", "2"),
    "transferred": ("transferred from a sibling", "4"),
    "analytic": ("from hardware figures", "soft"),
}
_TIERS: dict[str, tuple[str, Hue]] = {
    "gpu": ("still in GPU memory", "1"),
    "host": ("in the host's memory", "3"),
    "disk": ("on the host's disk", "5"),
    "remote": ("in the shared store", "2"),
}


def step_time(summary: Summary) -> tuple[BarChart, ...]:
    """Where the time of each pool's steps goes; of pools for which that is known."""
    known = [pool for pool in summary.pools if pool.step_time is not None]
    return tuple(_step_time(pool, i, len(summary.pools) > 1) for i, pool in enumerate(known))


def _step_time(pool: PoolFigures, place: int, several: bool) -> BarChart:
    assert pool.step_time is not None
    title = "Where step time goes" + (f": {pool.name}" if several else "")
    bars = _bars(pool.step_time.to_dict(), _WORK)
    return BarChart(f"step-time-{place}", title, _share("share of step time"), bars)


def provenance(summary: Summary) -> BarChart:
    """Where step times come from."""
    bars = _bars(summary.provenance.to_dict(), _PROVENANCE, empty=True)
    return BarChart("provenance", "Where the step times come from", _share("share of step time"), bars)


def tiers(summary: Summary) -> BarChart:
    """Where prompt tokens were found, in a fleet with memory below the GPUs'."""
    found = {kind: tier.hit_rate for kind, tier in summary.prefix_cache.by_tier.items()}
    bars = _bars(found, _TIERS, empty=True)
    rest = max(0.0, 1 - sum(found.values()))
    bars += (Bar("computed: found nowhere", rest, percent(rest), "soft"),) if found else ()
    return BarChart("tiers", "Where prompt tokens were found", _share("share of prompt tokens"), bars)


def _share(name: str) -> Axis:
    return Axis(name, "share", 0.0, 1.0)


def _bars(shares: dict[str, float], names: dict[str, tuple[str, Hue]], empty: bool = False) -> tuple[Bar, ...]:
    return tuple(
        Bar(names[key][0], share, percent(share), names[key][1]) for key, share in shares.items() if share or empty
    )
