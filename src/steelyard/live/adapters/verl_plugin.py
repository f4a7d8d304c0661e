"""Registers Steelyard's schedule with verl: ``VERL_USE_EXTERNAL_MODULES=steelyard.live.adapters.verl_plugin``."""

from __future__ import annotations

from importlib import import_module

from steelyard.live.adapters.verl_schedule import HybridSchedule

_BASE = "verl.experimental.fully_async_policy.dynamic_schedule.base"

import_module(_BASE).register_policy("steelyard")(HybridSchedule)
