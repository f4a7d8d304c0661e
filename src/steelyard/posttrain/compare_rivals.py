"""All systems that ours is compared with."""

from __future__ import annotations

from steelyard.posttrain.compare_rivals_asynchronous import ASYNCHRONOUS
from steelyard.posttrain.compare_rivals_libra import LIBRA
from steelyard.posttrain.compare_rivals_synchronous import SYNCHRONOUS

PROFILES = (*LIBRA, *SYNCHRONOUS, *ASYNCHRONOUS)
