"""KV-cache tiers below GPU memory."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from steelyard.scenario.base import Spec, mistake
from steelyard.scenario.numbers import MOST_BYTES, Bytes, Latency, Whole, unit
from steelyard.scenario.topology import Bandwidth

TierKind = Literal["host", "disk", "remote"]
KINDS: tuple[TierKind, ...] = ("host", "disk", "remote")  # in the order in which they lie below each other

_PREFIXES = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SIZE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*((?:[KMGTP]i)|[kKMGTP]?)B\s*")


def read_size(value: Any) -> float:
    """Bytes from a number, or from text like ``64GB`` or ``64 GiB``."""
    size = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        size = float(min(value, 2 * MOST_BYTES))  # a whole number may be too large for a float
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        size = float(found[1]) * {**_PREFIXES, **_BINARY}[found[2]]
    if not 0.0 <= size <= MOST_BYTES:
        raise mistake(f"not a size; give bytes from 0 to {MOST_BYTES:g}, or with a unit: 64GB, 64GiB, 2TB")
    return size


Size = Annotated[float, BeforeValidator(read_size, json_schema_input_type=Bytes | str)]


class TierSpec(Spec):
    """One tier. Transfers in one direction run one after the other."""

    kind: TierKind = Field(
        description="host: memory of the engine's host, which lower tiers pass through; disk: the engine's own disks; "
        "remote: one store that all engines of the fleet share."
    )
    size: Size | None = Field(default=None, description="Bytes per engine, or of the whole remote store (64GB, 2TB).")
    blocks: Whole | None = Field(
        default=None,
        description="Size in blocks of engine.block_size tokens, instead of `size`.",
        json_schema_extra=unit("blocks"),
    )
    bandwidth: Bandwidth | None = Field(
        default=None,
        description="Bytes per second in each direction (50GB), per engine or of the whole remote store.",
    )
    read_bandwidth: Bandwidth | None = Field(
        default=None, description="Bytes per second of reads, if reads and writes differ."
    )
    write_bandwidth: Bandwidth | None = Field(
        default=None, description="Bytes per second of writes, if reads and writes differ."
    )
    latency: Latency = Field(default=0.0, description="Seconds until the first bytes of a transfer arrive.")
    write: Literal["back", "through"] = Field(
        default="back",
        description="back: blocks are written when the tier above evicts them; through: when they are computed, as in "
        "vLLM's offloading connector and LMCache.",
    )

    @model_validator(mode="after")
    def _complete(self) -> TierSpec:
        if (self.size is None) == (self.blocks is None):
            raise mistake("give either size (bytes) or blocks", "size")
        both = self.read_bandwidth is not None and self.write_bandwidth is not None
        if self.bandwidth is None and not both:
            raise mistake("missing; give bandwidth, or read_bandwidth and write_bandwidth", "bandwidth")
        if self.bandwidth is not None and both:
            raise mistake("read_bandwidth and write_bandwidth say this already; leave one out", "bandwidth")
        return self

    @property
    def rates(self) -> tuple[float, float]:
        """Bytes per second of reading and of writing."""
        read, write = self.read_bandwidth or self.bandwidth, self.write_bandwidth or self.bandwidth
        assert read is not None and write is not None
        return read, write


def check_tiers(tiers: tuple[TierSpec, ...], caching: bool) -> None:
    """Refuse tiers in the wrong order, and tiers without prefix caching."""
    if tiers and not caching:
        raise mistake("nothing would ever be found there without enable_prefix_caching", "tiers")
    for i, (upper, lower) in enumerate(pairwise(tiers)):
        if KINDS.index(upper.kind) >= KINDS.index(lower.kind):
            raise mistake(
                f"{lower.kind} cannot lie below {upper.kind}; give each kind once, in the order {', '.join(KINDS)}",
                "tiers",
                i + 1,
                "kind",
            )
