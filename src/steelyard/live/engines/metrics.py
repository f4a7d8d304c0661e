"""Load from a page of metrics in Prometheus' text format, under the names of vLLM and SGLang."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from steelyard.live.engines.api import EngineLoad

_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_GENERATED = ("vllm:generation_tokens_total", 'sglang:realtime_tokens_total{mode="decode"}')
_NAMES = "|".join(sorted({name.partition("{")[0] for name in (*_RUNNING, *_WAITING, *_KV_USE, *_GENERATED)}))
_SAMPLE = re.compile(rf"^({_NAMES})(?:\{{(.*)\}})?[ \t]+(\S+)", re.MULTILINE)
_MODE = re.compile(r'(?:^|,)mode="([^"]*)"')


def load_of(page: str) -> EngineLoad:
    """The load that a page tells. Data-parallel ranks have a sample each: requests and tokens add up."""
    samples: dict[str, list[float]] = {}
    for name, labels, value in _SAMPLE.findall(page):
        mode = _MODE.search(labels)
        key = f'{name}{{mode="{mode[1]}"}}' if mode else name
        number = _number(value)
        if number is not None:
            samples.setdefault(key, []).append(number)
    kv_use = _first(samples, _KV_USE)
    return EngineLoad(
        running=_sum(samples, _RUNNING),
        waiting=_sum(samples, _WAITING),
        kv_use=sum(kv_use) / len(kv_use) if kv_use else None,
        generated=_sum(samples, _GENERATED),
    )


def _first(samples: dict[str, list[float]], names: Sequence[str]) -> list[float]:
    return next((samples[name] for name in names if name in samples), [])


def _sum(samples: dict[str, list[float]], names: Sequence[str]) -> float | None:
    found = _first(samples, names)
    return sum(found) if found else None


def _number(text: str) -> float | None:
    """A finite number of at least 0. Anything else is as good as not told."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
