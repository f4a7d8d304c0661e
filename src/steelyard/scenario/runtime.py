"""The release of an engine, whose defaults count where a scenario says nothing.

From the releases' own files, vllm/config/cache.py and vllm/config/scheduler.py of vLLM 0.12 to 0.32: 0.14 began to
schedule ahead by default, 0.20 takes 0.92 of the GPU instead of 0.9 and counts graphs in it. And from
vllm/v1/core/sched/scheduler.py: from 0.31 on a prompt that is alone is not split at long_prefill_token_threshold.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from steelyard.scenario.base import Spec, mistake

OLDEST, NEWEST = (0, 12), (0, 32)  # between which defaults are known
_SCHEDULES_AHEAD = (0, 14)
_COUNTS_GRAPHS = (0, 20)
_SPARES_LONE_PROMPTS = (0, 31)

Release = tuple[int, int]


class RuntimeSpec(Spec):
    """An engine's release."""

    name: Literal["vllm"] = Field(default="vllm", description="The engine.")
    version: str = Field(description=f"Its version, such as 0.26 or 0.26.0: 0.{OLDEST[1]} to 0.{NEWEST[1]}.")

    @field_validator("version")
    @classmethod
    def _known(cls, version: str) -> str:
        release = release_of(version)
        if release is None or not OLDEST <= release <= NEWEST:
            raise mistake(
                f"not a version whose defaults are known; 0.{OLDEST[1]} to 0.{NEWEST[1]} are (give it in quotes)"
            )
        return version

    @property
    def defaults(self) -> dict[str, Any]:
        """Engine settings that this release has where none are given."""
        return vllm_defaults(release_of(self.version) or NEWEST)

    @property
    def threshold_alone(self) -> bool:
        """Whether long_prefill_token_threshold also holds for a request that is alone."""
        return threshold_alone(release_of(self.version) or NEWEST)


def release_of(text: Any) -> Release | None:
    """Major and minor number of a version such as 0.19.0, v0.26 or 0.28.1rc1."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?!\d)", text) if isinstance(text, str) else None
    return (int(found[1]), int(found[2])) if found else None


def threshold_alone(release: Release) -> bool:
    """Whether a release splits long prompts of a request that is alone, too."""
    return release < _SPARES_LONE_PROMPTS


def vllm_defaults(release: Release) -> dict[str, Any]:
    """Defaults that differ between releases."""
    return {
        "gpu_memory_utilization": 0.92 if release >= _COUNTS_GRAPHS else 0.9,
        "async_scheduling": release >= _SCHEDULES_AHEAD,
    }
