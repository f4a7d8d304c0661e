"""Prefix-cache hits by memory tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from steelyard.report.markup import BarPart, share_bar, text_table
from steelyard.report.words import Share, byte_size, count

if TYPE_CHECKING:
    from steelyard.sim import Summary
    from steelyard.sim.summary import FoundInTier

TIERS_HEAD = ("Hits in", "tokens", "of prompts", "read", "written", "read use", "write use")
_MEANINGS = {
    "gpu": ("GPU", "still in the memory of the engine's GPUs"),
    "host": ("host", "fetched from the host's memory"),
    "disk": ("disk", "fetched from the host's disk"),
    "remote": ("remote", "fetched from the store that engines share"),
}


def tier_rows(summary: Summary) -> list[list[str | Share]]:
    """One row for each tier of a fleet with tiers below GPU memory."""
    return [
        [
            _MEANINGS[kind][0],
            count(tier.hit_tokens),
            Share(tier.hit_rate),
            *map(byte_size, (tier.bytes_read, tier.bytes_written)),
            *map(Share, (tier.read_use, tier.write_use)),
        ]
        for kind, tier in _tiers(summary).items()
    ]


def tier_section(summary: Summary) -> str:
    """All prompt tokens as one bar, by where they were found, and the traffic of each tier."""
    tiers = _tiers(summary)
    if not tiers:
        return ""
    shares = {kind: tier.hit_rate for kind, tier in tiers.items()}
    parts = [BarPart(f"tier-{kind}", share, *_MEANINGS[kind]) for kind, share in shares.items()]
    parts.append(BarPart("tier-none", max(0.0, 1 - sum(shares.values())), "computed", "found nowhere"))
    foot = f"Uses are shares of the run in which a tier's link was sending. {_written(tiers)}"
    return share_bar("Where prompt tokens were found", parts, foot) + text_table(TIERS_HEAD, tier_rows(summary))


def _written(tiers: Mapping[str, FoundInTier]) -> str:
    """How many blocks were written to each tier during the run, and how many it holds."""
    told = []
    for kind, tier in tiers.items():
        if tier.blocks is not None:
            away = f", {count(tier.blocks_turned_away)} turned away" if tier.blocks_turned_away else ""
            stored, room = count(tier.blocks_stored), count(tier.blocks)
            told.append(
                f"{_MEANINGS[kind][0]} {stored} (holds {room}{'' if kind == 'remote' else ' per engine'}{away})"
            )
    return f"Blocks written: {', '.join(told)}."


def _tiers(summary: Summary) -> Mapping[str, FoundInTier]:
    return summary.prefix_cache.by_tier
