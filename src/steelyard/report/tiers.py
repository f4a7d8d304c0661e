"""Prefix-cache hits by memory tier."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from steelyard.report.markup import chart_boxes, text_table
from steelyard.words import Share, byte_size, count

if TYPE_CHECKING:
    from steelyard.sim import Result, Summary
    from steelyard.sim.summary import FoundInTier

TIERS_HEAD = ("Hits in", "tokens", "of prompts", "read", "written", "read use", "write use")
_NAMES = {"gpu": "GPU", "host": "host", "disk": "disk", "remote": "remote"}


def tier_rows(summary: Summary) -> list[list[str | Share]]:
    """One row for each tier of a fleet with tiers below GPU memory."""
    return [
        [
            _NAMES[kind],
            count(tier.hit_tokens),
            Share(tier.hit_rate),
            *map(byte_size, (tier.bytes_read, tier.bytes_written)),
            *map(Share, (tier.read_use, tier.write_use)),
        ]
        for kind, tier in _tiers(summary).items()
    ]


def tier_section(result: Result) -> str:
    """All prompt tokens, by where they were found, and the traffic of each tier."""
    tiers = _tiers(result.summary)
    if not tiers:
        return ""
    said = f"Uses are shares of the run in which a tier's link was sending. {_written(tiers)}"
    table = text_table(TIERS_HEAD, tier_rows(result.summary))
    return f"{chart_boxes([result.plot.tiers()], 'one')}<p>{escape(said)}</p>{table}"


def _written(tiers: Mapping[str, FoundInTier]) -> str:
    """How many blocks were written to each tier during the run, and how many it holds."""
    told = []
    for kind, tier in tiers.items():
        if tier.blocks is not None:
            away = f", {count(tier.blocks_turned_away)} turned away" if tier.blocks_turned_away else ""
            stored, room = count(tier.blocks_stored), count(tier.blocks)
            told.append(f"{_NAMES[kind]} {stored} (holds {room}{'' if kind == 'remote' else ' per engine'}{away})")
    return f"Blocks written: {', '.join(told)}."


def _tiers(summary: Summary) -> Mapping[str, FoundInTier]:
    return summary.prefix_cache.by_tier
