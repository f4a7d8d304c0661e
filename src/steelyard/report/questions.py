"""Answers to the further questions of `steelyard capacity`: the best split, and the break-even price of a GPU type."""

from __future__ import annotations

from collections.abc import Iterator

from steelyard.quoting import shortened
from steelyard.search.breakeven import BreakEven
from steelyard.search.ratio import PoolSplit, Ratio
from steelyard.words import plural

_MOST_SHOWN = 20  # splits on the console


def ratio_lines(found: Ratio) -> list[str]:
    """The best split, the next best, and all of them."""
    best = found.best
    if not best.rate:
        return [f"no split of {plural(found.gpus, 'GPU')} carries any rate within the limits"]
    first = (
        f"{_named(found, best)} carries {best.rate:.3g} requests/s on {plural(found.gpus, 'GPU')}: "
        f"{best.output_tokens_per_s:,.0f} output tokens/s"
    )
    lines = [first]
    if len(found.splits) > 1 and found.splits[1].rate:
        second = found.splits[1]
        lines.append(f"next: {_named(found, second)}: {second.rate:.3g} requests/s, {second.rate / best.rate - 1:+.1%}")
    return [*lines, *_all_splits(found)]


def _all_splits(found: Ratio) -> Iterator[str]:
    shown = sorted(found.splits[:_MOST_SHOWN], key=lambda each: each.replicas)
    width = max(len(_named(found, each)) for each in shown)
    for each in shown:
        told = f"cannot work: {shortened(each.refused)}" if each.refused else f"{each.rate:8.3g} requests/s"
        yield f"  {_named(found, each):{width}}  {told}"
    if len(found.splits) > len(shown):
        yield f"  the best {len(shown)} of {len(found.splits)} splits; --json has all"


def _named(found: Ratio, split: PoolSplit) -> str:
    return " + ".join(f"{count} x {name}" for name, count in zip(found.pools, split.replicas, strict=True))


def ratio_figures(found: Ratio) -> dict[str, object]:
    """All splits, the best first."""
    return {
        "gpus": found.gpus,
        "pools": list(found.pools),
        "splits": [
            {
                "replicas": dict(zip(found.pools, each.replicas, strict=True)),
                "rate": each.rate,
                "output_tokens_per_s": each.output_tokens_per_s,
                **({"refused": each.refused} if each.refused else {}),
            }
            for each in found.splits
        ],
    }


def break_even_lines(found: BreakEven) -> list[str]:
    """The price, and what it follows from."""
    if found.refused:
        return [f"no price: {found.gpu} cannot work in {found.pool}: {found.refused}"]
    if not found.other_rate:
        return [f"no price: with {found.gpu} in {found.pool} the fleet carries no rate within its limits"]
    layout = f"{found.gpus // found.tp} x TP{found.tp}"
    rates = (
        f"with {layout} {found.gpu} in {found.pool} the fleet carries {found.other_rate:.3g} requests/s, "
        f"with {found.own_gpu} {found.own_rate:.3g}"
    )
    if found.price is None:
        return [f"no price: even free, {found.gpu} in {found.pool} would give fewer tokens per dollar", rates]
    better = "below" if found.catalog_price < found.price else "above"
    first = (
        f"{found.gpu} in {found.pool} breaks even at ${found.price:.2f} per GPU-hour "
        f"(catalog: ${found.catalog_price:.2f}, {better} it)"
    )
    return [first, rates]


def break_even_figures(found: BreakEven) -> dict[str, object]:
    """All figures of the answer."""
    return {
        "pool": found.pool,
        "gpu": found.gpu,
        "price_per_hour": found.price,
        "catalog_price_per_hour": found.catalog_price,
        "gpus": found.gpus,
        "tp": found.tp,
        "rate": found.other_rate,
        "own_gpu": found.own_gpu,
        "own_rate": found.own_rate,
        "own_usd_per_hour": found.own_usd_per_hour,
        **({"refused": found.refused} if found.refused else {}),
    }
