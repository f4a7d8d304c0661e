"""Pools and links in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from steelyard.report.markup import text_table
from steelyard.words import Share, byte_size, count, percent

if TYPE_CHECKING:
    from steelyard.sim import Summary
    from steelyard.sim.summary import PoolFigures

STEP_TIME_HEAD = ("Step time", "attention", "GEMM", "experts", "comm.", "other", "host")
POOLS_HEAD = ("Pool", "GPUs", "engines", "busy", "MFU", "MBU", "KV use", "peak")
LINKS_HEAD = ("Links", "carried", "mean use", "busiest", "in use")


class _Wait(NamedTuple):
    """A kind of waiting during busy time, and what it is a share of."""

    name: str
    of_what: str
    share: Callable[[PoolFigures], float | None]


_WAITS = (
    _Wait("stalled", "of the time of decode steps, waiting for the other side", lambda pool: pool.stalled),
    _Wait(
        "bubble",
        "of the time of stages, with nothing to do while another stage had",
        lambda pool: pool.pipeline_bubble,
    ),
)


def pool_rows(summary: Summary) -> list[list[str | Share]]:
    """One row for each pool of a fleet that has several."""
    return [_row(pool) for pool in summary.pools] if len(summary.pools) > 1 else []


def link_rows(summary: Summary) -> list[list[str | Share]]:
    """One row for each kind of link that requests passed over."""
    return [
        [
            name.replace("_", " "),
            byte_size(use.bytes),
            *map(Share, (use.mean_use, use.peak_use, use.busy)),
        ]
        for name, use in summary.links.items()
    ]


def step_time_rows(summary: Summary) -> list[list[str | Share]]:
    """Where the time of each pool's steps goes."""
    return [
        [pool.name, *map(Share, pool.step_time.to_dict().values())]
        for pool in summary.pools
        if pool.step_time is not None
    ]


def acceptance_line(summary: Summary) -> str:
    """Tokens per request and step with speculative decoding; empty without."""
    lines = [_acceptance(pool) for pool in summary.pools]
    return "; ".join(line for line in lines if line)


def _acceptance(pool: PoolFigures) -> str:
    if pool.acceptance_length is None:
        return ""
    return f"Acceptance length {pool.acceptance_length:.2f}: tokens per request and step, the engine's own included"


def wait_lines(summary: Summary) -> dict[str, str]:
    """`Stalled`: `attention 55.0 %, ffn 18.5 % of the time of ...`, for each kind of waiting of the fleet."""
    found = {}
    for wait in _WAITS:
        shares = [(pool.name, wait.share(pool)) for pool in summary.pools]
        told = ", ".join(f"{name} {percent(share)}" for name, share in shares if share is not None)
        if told:
            found[wait.name.capitalize()] = f"{told} {wait.of_what}"
    return found


def pool_section(summary: Summary) -> str:
    """The pools of a fleet that has several or whose GPUs wait for each other, and the links between them."""
    pools = summary.pools
    waits = [wait for wait in _WAITS if any(wait.share(pool) is not None for pool in pools)]
    if len(pools) < 2 and not waits:
        return ""
    head, rows = list(POOLS_HEAD), [_row(pool) for pool in pools]
    at = head.index("busy") + 1
    head[at:at] = [wait.name for wait in waits]
    for row, pool in zip(rows, pools, strict=True):
        row[at:at] = [Share(wait.share(pool)) for wait in waits]
    if summary.models:
        head[1:1] = ["model"]
        for row, pool in zip(rows, pools, strict=True):
            row[1:1] = [pool.model or ""]
    said = "".join(f"<p>{escape(f'{wait.name.capitalize()}: the share {wait.of_what}.')}</p>" for wait in waits)
    return text_table(head, rows) + said + text_table(LINKS_HEAD, link_rows(summary))


def _row(pool: PoolFigures) -> list[str | Share]:
    return [
        pool.name if pool.name == pool.role else f"{pool.name} ({pool.role})",
        f"{count(pool.gpus)} {pool.gpu}",
        count(pool.replicas),
        Share(pool.busy),
        *map(percent, (pool.mfu, pool.mbu, pool.kv.mean_use, pool.kv.peak_use)),
    ]
