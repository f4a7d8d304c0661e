"""Every numeric field of the scenario schemas, each in a small scenario that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

Data = dict[str, Any]
Put = Callable[[Any], Data]
"""A whole scenario with a value at some place."""

SERVING: Data = {
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h100", "replicas": 2},
    "workload": {"arrivals": {"kind": "poisson", "rate": 10}, "requests": 4, "prompt": 40, "output": 4},
    "cost": {"source": "analytic"},
}
APART: Data = {"pools": [{"role": "prefill", "gpu": "h100"}, {"role": "decode", "gpu": "h100", "replicas": 2}]}
TOOL: Data = {"name": "t", "latency": 0.1, "returned": 10}
TRAJECTORIES: Data = {
    "prompts": 4,
    "group": 2,
    "tasks": 4,
    "prompt": 40,
    "thinking": 10,
    "call": 5,
    "answer": 10,
    "tools": [TOOL],
    "work": {"median": 1},
    "budget": {"turns": 3, "context": 400},
}
POSTTRAIN: Data = {
    "model": "qwen3-0.6b",
    "gpu": "h100",
    "trajectories": TRAJECTORIES,
    "mode": "asynchronous",
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"dp": 2},
    "cost": {"source": "analytic"},
    "steps": 2,
}
# What a part needs besides its required keys so that it works, and what one of its fields needs.
WHOLE: dict[str, Data] = {
    "WorkloadSpec": SERVING["workload"],
    "TrajectorySpec": TRAJECTORIES,
    "FileTrajectories": {"prompts": 4, "group": 2},
    "BudgetSpec": TRAJECTORIES["budget"],
    "ToolSpec": TOOL,
    "ChangeSpec": {"at": 0.1, "slow": {"pool": "decode", "factor": 1.5}},
    "CrashSpec": {"pool": "decode", "restart_after": 1},
    "SlowSpec": {"pool": "decode", "factor": 1.5},
    "SpeculativeSpec": {"method": "free", "num_tokens": 2, "acceptance": [1]},
    "TierSpec": {"kind": "host", "blocks": 100, "bandwidth": "50GB"},
    "AutoscaleSpec": {"max": 4, "target": 4},
    "ShortFleet": SERVING["fleet"],
    "PoolSpec": {"gpu": "h100", "replicas": 2},
    "DriftPoint": {"step": 1},
    "Wave": {"mean": 10, "amplitude": 0, "period": 60},
    "UniformTokens": {"min": 1, "max": 1000},
    "UniformSeconds": {"min": 0, "max": 100},
    "ZipfTokens": {"min": 1, "max": 1000},
    "LearningSpec": {"samples": 100, "start": -1e9, "best": 1e9},
}
BESIDE: dict[tuple[str, str], Data] = {
    ("Lognormal", "median"): {"sigma": 0.5},
    ("Lognormal", "mean"): {"sigma": 0.5},
    ("Lognormal", "p95"): {"median": 1e-9},
    ("Lognormal", "sigma"): {"median": 100},
    ("Lognormal", "min"): {"median": 100, "sigma": 0.5},
    ("Lognormal", "max"): {"median": 100, "sigma": 0.5},
    ("AutoscaleSpec", "ttft"): {"by": "slo", "target": None},
    ("AutoscaleSpec", "tpot"): {"by": "slo", "target": None},
    ("AutoscaleSpec", "window"): {"by": "slo", "target": None, "ttft": 1},
    ("AutoscaleSpec", "percentile"): {"by": "slo", "target": None, "ttft": 1},
    ("AutoscaleSpec", "slack"): {"by": "slo", "target": None, "ttft": 1},
    ("AutoscaleSpec", "step"): {"by": "slo", "target": None, "ttft": 1},
    ("AutoscaleSpec", "schedule"): {"by": "schedule", "target": None},
    ("ChangeSpec", "crash"): {"slow": None},
    ("ChangeSpec", "link"): {"slow": None},
    ("ChangeSpec", "until"): {"at": 0},
    ("TierSpec", "size"): {"blocks": None},
    ("TierSpec", "read_bandwidth"): {"write_bandwidth": "50GB", "bandwidth": None},
    ("TierSpec", "write_bandwidth"): {"read_bandwidth": "50GB", "bandwidth": None},
    ("EngineSpec", "num_speculative_tokens"): {"acceptance": [0]},
    ("EngineSpec", "acceptance"): {"num_speculative_tokens": 1000},
    ("EngineSpec", "max_num_batched_tokens"): {"max_num_seqs": 1},
    ("EngineSpec", "max_num_seqs"): {"max_num_batched_tokens": 262_144},
    ("EngineSpec", "warm_up"): {"fresh": True, "max_num_batched_tokens": 262_144},
    ("EngineSpec", "sglang"): {"scheduler": "sglang"},
    ("ChoicePriority", "weights"): {"values": [1]},
    ("SteadySpec", "end"): {"start": 0},
    ("ModelRef", "routing"): {"config": "gpt-oss-20b"},
    ("FleetSpec", "pools"): {"pool_router": "weighted"},
    ("FleetSpec", "afd"): {"pools": [{"role": "attention", "gpu": "h100"}, {"role": "ffn", "gpu": "h100"}]},
    ("TrajectorySpec", "drift"): {"learning": {"samples": 100}},
    ("Scenario", "dynamics"): {"fleet": APART},
}
BEFORE: dict[str, list[Data]] = {"plan": [{"output": 4}]}  # entries of a list before the one that is looked at
NAMES = {
    "gpu": "h100",
    "config": "llama-3.1-8b",
    "pool": "decode",
    "name": "a",
    "file": "missing.jsonl",
    "path": "missing.json",
    "draft_model": "llama-3.2-1b",
}


@dataclass(frozen=True)
class NumericField:
    """A field: its path, its schema, and scenarios with a value there."""

    path: tuple[str | int, ...]
    owner: str  # the part of the scenario that has it, by its class
    kind: str  # integer or number
    least: float | None
    most: float | None
    usual: Any  # the default
    put: Put

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its path, without indices."""
        return tuple(part for part in self.path if isinstance(part, str))

    def __str__(self) -> str:
        return ".".join(map(str, self.path))


def numeric_fields(schema: Mapping[str, Any], base: Data) -> Iterator[NumericField]:
    """The numeric fields of a scenario's schema, each once for every key that it may be under. ``base`` has the other
    keys."""
    walker = _Walker(schema["$defs"])
    title = str(schema["title"])
    seen = set()
    for key, part in schema["properties"].items():
        for field in walker.walk(part, (key,), title, _setting(base | BESIDE.get((title, key), {}), key)):
            place = field.owner, field.keys[-2:], field.path[-1]
            if place not in seen:
                seen.add(place)
                yield field


def _setting(data: Data, key: str, put: Put | None = None) -> Put:
    def with_value(value: Any) -> Data:
        if key in BEFORE and isinstance(value, dict):
            value = [*BEFORE[key], value]
        whole = {name: each for name, each in {**data, key: value}.items() if each is not None or name == key}
        return whole if put is None else put(whole)

    return with_value


def _put_entry(put: Put, entries: list[Any], index: int, value: Any) -> Data:
    return put([*entries[:index], value, *entries[index + 1 :]])


class _Walker:
    """Walks a JSON schema."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def walk(
        self, part: Mapping[str, Any], path: tuple[str | int, ...], owner: str, put: Put
    ) -> Iterator[NumericField]:
        if "$ref" in part:
            part = self._resolved(part)
        if part.get("type") in ("integer", "number") and "enum" not in part:
            least = part.get("minimum", part.get("exclusiveMinimum"))
            most = part.get("maximum", part.get("exclusiveMaximum"))
            yield NumericField(path, owner, part["type"], least, most, part.get("default"), put)
        for variant in (*part.get("anyOf", ()), *part.get("oneOf", ())):
            yield from self.walk({"default": part.get("default"), **variant}, path, owner, put)
        for key, inner in part.get("properties", {}).items():
            own = str(part.get("title", owner))
            data = self._minimal(part) | BESIDE.get((own, key), {})
            yield from self.walk(inner, (*path, key), own, _setting(data, key, put))
        if part.get("type") == "array":
            yield from self._entries(part, path, owner, put)

    def _entries(
        self, part: Mapping[str, Any], path: tuple[str | int, ...], owner: str, put: Put
    ) -> Iterator[NumericField]:
        places = part.get("prefixItems")
        if places is None:
            before = BEFORE.get(str(path[-1]), [])
            place = (*path, len(before))
            yield from self.walk(part.get("items", {}), place, owner, lambda value: put([*before, value]))
            return
        usual = [self._value(each, "") for each in places]
        for i, place in enumerate(places):
            yield from self.walk(place, (*path, i), owner, partial(_put_entry, put, usual, i))

    def _resolved(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._definitions[part["$ref"].rpartition("/")[2]]
        return found

    def _minimal(self, part: Mapping[str, Any]) -> Data:
        """A part of a scenario with as few keys as may be."""
        required = {key: self._value(part["properties"][key], key) for key in part.get("required", ())}
        return required | WHOLE.get(str(part.get("title")), {})

    def _value(self, part: Mapping[str, Any], key: str) -> Any:
        if "$ref" in part:
            part = self._resolved(part)
        for variant in (*part.get("anyOf", ()), *part.get("oneOf", ())):
            return self._value(variant, key)
        if "const" in part:
            return part["const"]
        if "enum" in part:
            return part["enum"][0]
        if part.get("type") == "string":
            return NAMES.get(key, "a")
        if part.get("type") == "array":
            return [self._value(each, key) for each in part.get("prefixItems", [part.get("items", {})])]
        if part.get("type") == "object":
            return self._minimal(part)
        return max(1, part.get("minimum", 1))
