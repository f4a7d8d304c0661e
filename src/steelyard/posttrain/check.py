"""Invariants of post-training results: `check_posttrain` raises if a result cannot be true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from steelyard.posttrain.held import Held
from steelyard.posttrain.record import StepRecord
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.trajectory_table import Column
from steelyard.sim.invariants import Invariants


def check_posttrain(result: PosttrainResult) -> None:
    """Raise `BrokenResult`, naming every violated invariant, unless a result holds together."""
    found = Invariants()
    _summary(found, result.summary)
    _steps(found, result.records, result.summary)
    bound = result.scenario.staleness_bound
    oldest = max(age for step in result.records for age in step.staleness)
    bounded = result.scenario.admission.late != "train"
    found.expect(oldest <= bound or not bounded, f"a sample is {oldest} versions old, and may be {bound}")
    _trajectories(found, result.trajectories, result.records)
    _step_table(found, result.steps, result.summary)
    _held(found, result.held, result.summary)
    found.done()


def _summary(found: Invariants, got: Mapping[str, Any]) -> None:
    found.finite("summary", got)
    seconds = got["seconds"]
    found.expect(seconds > 0, f"the run took {seconds!r} seconds")
    found.same("samples_per_second * seconds", got["samples_per_second"] * seconds, got["samples"], "samples")
    found.same("step_seconds.total * steps", got["step_seconds"]["total"] * got["steps"], seconds, "seconds")
    parts = {name: value for name, value in got["step_seconds"].items() if name != "total"}
    found.same("the sum of step_seconds", sum(parts.values()), got["step_seconds"]["total"], "their total")
    for name, value in (*got["step_seconds"].items(), *got["training"].items()):
        found.expect(value >= -1e-9, f"{name} takes {value!r} seconds")
    for stage, shares in got["gpu_time"].items():
        found.shares({f"gpu_time.{stage}.{name}": share for name, share in shares.items()})
        found.same(f"the sum of gpu_time.{stage}", sum(shares.values()), 1.0, "all")
    found.spread("trajectory_seconds", got["trajectory_seconds"])
    found.shares({"tail_share": got["tail_share"], "between_roles": got.get("between_roles")})
    counted = sum(got["staleness"].values())
    found.expect(counted == got["samples"], f"staleness is of {counted} samples, not {got['samples']}")
    found.expect(min(map(int, got["staleness"])) >= 0, "a sample is younger than the weights that it trains")
    tail = got.get("tail")
    if tail is not None:
        found.shares({"tail.thrown_away.share": tail["thrown_away"]["share"]})
        found.expect(tail["freed_gpu_seconds"] >= 0, f"tail.freed_gpu_seconds is {tail['freed_gpu_seconds']!r}")


def _steps(found: Invariants, steps: Sequence[StepRecord], got: Mapping[str, Any]) -> None:
    found.expect(len(steps) == got["steps"], f"{len(steps)} steps, the summary has {got['steps']}")
    found.expect(sum(step.samples for step in steps) == got["samples"], "samples of steps do not add up")
    tokens = sum(step.tokens for step in steps)
    found.same("tokens_per_second * seconds", got["tokens_per_second"] * got["seconds"], tokens, "tokens of steps")
    for number, step in enumerate(steps):
        name = f"step {number}"
        found.expect(step.step == number, f"{name} is called {step.step}")
        found.rising(
            name,
            {
                "waited_from": step.waited_from,
                "begun": step.begun,
                "trained": step.trained,
                "synced": step.synced,
            },
        )
        found.expect(len(step.staleness) == step.samples > 0, f"{name} has the staleness of other samples than its own")
        for span, following in pairwise(step.spans):
            found.rising(f"{name}, its parts", {"begun": span[0], "trained": span[1], "the next begun": following[0]})
    for before, after in pairwise(steps):
        found.rising(f"step {after.step}", {"the end of the step before": before.synced, "begun": after.begun})


def _step_table(found: Invariants, table: Mapping[str, Column], got: Mapping[str, Any]) -> None:
    parts = sum(table[name] for name in ("waiting", "handing_over", "training", "sync"))
    found.expect(np.allclose(parts, table["seconds"], rtol=1e-9, atol=1e-6), "stages do not add up to a step's seconds")
    found.same("the sum of usd of steps", float(table["usd"].sum()), got["cost"]["usd"], "cost.usd")
    for role in ("rollout", "training"):
        held = float(table[f"{role}_gpu_seconds"].sum())
        column, busy = f"{role}_busy_gpu_seconds", got["gpu_time"][role]["busy"] * held
        found.same(f"the sum of {column}", float(table[column].sum()), busy, f"gpu_time.{role}.busy")


def _trajectories(found: Invariants, table: Mapping[str, Column], steps: Sequence[StepRecord]) -> None:
    trained = table["step"] >= 0
    found.expect(not (table["begun"] > table["ended"]).any(), "a trajectory ended before it began")
    found.expect(np.isfinite(table["ended"][trained]).all(), "a trajectory was trained on before it ended")
    found.expect(not (trained & table["given_up"]).any(), "a trajectory was trained on and thrown away")
    samples = np.bincount(table["step"][trained], minlength=len(steps))
    tokens = np.bincount(table["step"][trained], weights=table["generated"][trained], minlength=len(steps))
    for step, count, generated in zip(steps, samples.tolist(), tokens.tolist(), strict=True):
        found.expect(count == step.samples, f"step {step.step} has {step.samples} samples, trajectories {count}")
        found.expect(generated == step.tokens, f"step {step.step} has {step.tokens} tokens, engines made {generated}")
    latest = np.array([step.begun for step in steps])[table["step"][trained]]
    found.expect((table["begun"][trained] <= latest).all(), "a step was trained on what had not begun")


def _held(found: Invariants, held: Sequence[Held], got: Mapping[str, Any]) -> None:
    for role in ("rollout", "training"):
        spans = [
            (each.gpus, max(0.0, min(each.until, got["seconds"]) - each.since)) for each in held if each.role == role
        ]
        used = sum(gpus * seconds for gpus, seconds in spans)
        found.rising(role, {"zero": 0.0, "GPU seconds": used, "gpus * seconds": got["gpus"] * got["seconds"]})
    for each in held:
        found.expect(each.since <= each.until, f"{each.gpus} GPUs had a role until before they got it")
        found.expect((each.busy_from <= each.busy_until).all(), "an engine was busy until before it began")
        found.expect((each.busy_until[:-1] <= each.busy_from[1:]).all(), "an engine was busy with two things at once")
