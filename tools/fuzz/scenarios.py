"""Scenarios: small valid ones of every kind, with a key or two changed, and wholly random ones."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tools.fuzz.schema import posttraining, serving, slots, value_of
from tools.fuzz.values import hostile, hostile_number, hostile_text

Written = dict[str, Any]

EXAMPLES = Path(__file__).parents[2] / "examples"
_FEW = 12  # requests of a scenario, before a key or two are changed
_SMALL_POSTTRAIN: Written = {"prompts": 4, "group": 2}


@cache
def _examples() -> tuple[Written, ...]:
    return tuple(yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(EXAMPLES.glob("*.yaml")))


@cache
def _posttrain_examples() -> tuple[Written, ...]:
    paths = sorted((EXAMPLES / "posttrain").glob("*-48*.yaml"))
    return tuple(yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths)


def small_serving(r: Random) -> Written:
    """An example with few requests. Most run on a roofline, which is quick to compile."""
    found = deepcopy(r.choice(_examples()))
    workload = found["workload"]
    for each in workload if isinstance(workload, list) else workload.get("mix", [workload]):
        each["requests"] = r.randrange(1, _FEW)
    if "mix" in workload:
        workload["requests"] = r.randrange(1, _FEW)
    if r.random() < 0.8:
        found["cost"] = {"source": "analytic"}
    return found


def small_posttrain(r: Random) -> Written:
    """An example with few trajectories on few engines."""
    found = deepcopy(r.choice(_posttrain_examples()))
    found["trajectories"] = {"preset": found["trajectories"], **_SMALL_POSTTRAIN}
    found["steps"] = r.choice((1, 1, 2))
    if r.random() < 0.8:
        found["cost"] = {"source": "analytic"}
    if r.random() < 0.4:
        found["mode"] = r.choice(("split", "one-step-off", "asynchronous"))
    if r.random() < 0.3:
        found["tail"] = r.choice(("over-sampling", "tail-batching", "partial", "divided", "repack", "reconfigure"))
    if r.random() < 0.2:
        found["pool"] = r.choice(("thresholds", "payoff"))
    return found


def tiny_posttrain(r: Random) -> Written:
    """A scenario that runs in a blink, for commands that run many."""
    return {
        "model": "qwen3-0.6b",
        "gpu": r.choice(("h100", "a800")),
        "trajectories": {"preset": r.choice(("search", "math")), "prompts": 2, "group": 2},
        "mode": r.choice(("split", "one-step-off", "asynchronous")),
        "rollout": [{"tp": 1, "replicas": 2}],
        "training": {"dp": 2},
        "cost": {"source": "analytic"},
        "steps": 1,
    }


def changed(written: Written, r: Random, posttrain: bool, changes: int) -> Written:
    """A scenario with so many keys changed: to what the schema allows, or to something hostile."""
    found = deepcopy(written)
    root = posttraining() if posttrain else serving()
    for _ in range(changes):
        places = list(slots(root, root, found))
        if not places:  # a key that no scenario has was added before
            break
        container, key, _, schema = r.choice(places)
        chance = r.random()
        if chance < 0.75:
            container[key] = value_of(root, schema, r, 2, str(key))
        elif chance < 0.9:
            container[key] = hostile_number(r)
        elif chance < 0.98 or isinstance(container, list):
            container[key] = hostile(r)
        else:
            container[hostile_text(r)] = hostile(r)
    return found


def scenario(r: Random, posttrain: bool, base: Written | None = None) -> Written:
    """Mostly near-valid; now and then random from the schema on."""
    if r.random() < 0.1:
        root = posttraining() if posttrain else serving()
        found: Written = value_of(root, root, r)
        return found
    base = base or (small_posttrain(r) if posttrain else small_serving(r))
    return changed(base, r, posttrain, r.choice((0, 1, 1, 1, 1, 2, 2, 3)))


class _Dumper(yaml.SafeDumper):
    """Without aliases, and with text that YAML cannot hold escaped."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(written: Any) -> bytes:
    """As YAML text."""
    return yaml.dump(written, Dumper=_Dumper, sort_keys=False, allow_unicode=False).encode("utf-8", "replace")


def setting(written: Written, r: Random, posttrain: bool) -> str:
    """A value of ``--set`` for a scenario."""
    root = posttraining() if posttrain else serving()
    slot = r.choice(list(slots(root, root, written)))
    value = hostile(r) if r.random() < 0.4 else value_of(root, slot.schema, r, 3, str(slot.key))
    key = ".".join(slot.path) if r.random() < 0.9 else hostile_text(r)
    flow = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**9).removesuffix("...\n").strip()
    text = flow if r.random() < 0.8 else str(value)
    return f"{key}={text}" if r.random() < 0.95 else r.choice((key, "=", f"{key}=", f"={text}", f"{key}.={text}"))
