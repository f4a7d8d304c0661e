"""Replays decisions of vLLM's own scheduler and compares them step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steelyard.cost.step import StepTime
from steelyard.engine import BlockNames, Engine, Limits, Pipeline, Request
from steelyard.errors import UserError
from steelyard.files.jsontext import json_lines
from steelyard.scenario.runtime import NEWEST, release_of, threshold_alone

TIME_TOLERANCE = 1e-6  # seconds: the goldens' times are rounded

Step = tuple[float, float, dict[int, int], list[int], int]

_LONGEST = 1 << 30  # tokens of a prompt or an output: more than any model takes
_MOST = 1 << 20  # of tokens and requests in a step, and of tokens in a block: more than any engine has


@dataclass(frozen=True)
class LinearCost:
    """The golden files' latency: base + per_token x scheduled tokens + per_kv_token x tokens in the cache."""

    base: float
    per_token: float
    per_kv_token: float

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        return self.base + self.per_token * n, self.per_kv_token, 1 << 60

    def decode_host(self, n: int) -> tuple[float, float, float]:
        return 0.0, 0.0, 0.0

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        tokens = n + sum(chunk for chunk, _ in chunks)
        cached = kv + sum(chunk + before for chunk, before in chunks)
        return StepTime(self.base + self.per_token * tokens + self.per_kv_token * cached, 0.0, 0.0, 0.0)


@dataclass
class GoldenReplay:
    """What our engine did with a golden scenario."""

    steps: list[Step] = field(default_factory=list)
    first_token: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)

    def step(self, scheduled_at: float, tokens: dict[int, int], preempted: list[int], free: int) -> None:
        self.steps.append((scheduled_at, 0.0, tokens, preempted, free))

    def ended(self, ends: Sequence[float]) -> None:
        """Add the ends of all steps, which are known after the run."""
        self.steps = [(step[0], end, *step[2:]) for step, end in zip(self.steps, ends, strict=True)]


@dataclass(frozen=True)
class Verdict:
    """A scenario's name and its first difference, or None if there is none."""

    name: str
    difference: str | None
    steps: int


def read_golden(path: Path) -> Iterator[dict[str, Any]]:
    """The scenarios of a golden file, one JSON object a line, gzipped or not."""
    return (golden for _, golden in json_lines(path, None))


def limits_of(golden: dict[str, Any]) -> Limits:
    """Engine settings of a golden scenario; refuses settings that our engine lacks."""
    config = golden["config"]
    for key, plain in (
        ("sliding_window", None),
        ("hybrid_full_every", 0),
        ("max_num_scheduled_tokens", None),
        ("max_num_active_seqs", None),
        ("sched_overhead", 0.0),
        ("update_overhead", 0.0),
        ("arrival_clock", "time"),
    ):
        if config.get(key, plain) != plain:
            raise UserError(f"scenario {golden['name']}: config.{key}={config[key]!r} is not supported; only {plain!r}")
    for key in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
        if not isinstance(config[key], int) or not 1 <= config[key] <= _MOST:
            raise UserError(
                f"scenario {golden['name']}: config.{key} must be from 1 to {_MOST:,} (found {config[key]!r})"
            )
    for r in golden["requests"]:
        for key in ("prompt_len", "output_len"):
            if not isinstance(r[key], int) or not 1 <= r[key] <= _LONGEST:
                raise UserError(
                    f"scenario {golden['name']}: {key} must be from 1 to {_LONGEST:,} (found {str(r[key])[:40]})"
                )
    longest = max(r["prompt_len"] + r["output_len"] for r in golden["requests"])
    drafts = config.get("num_speculative_tokens", 0)
    return Limits(
        blocks=golden["usable_blocks"],
        block_size=config["block_size"],
        max_model_len=config.get("max_model_len") or max(longest + drafts + 1, 64),
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        threshold_alone=threshold_alone(release_of(golden.get("vllm")) or NEWEST),
        enable_chunked_prefill=config["enable_chunked_prefill"],
        enable_prefix_caching=config["enable_prefix_caching"],
        priority=config["policy"] == "priority",
        async_scheduling=config["async_scheduling"],
        reserve_full_prompt=config.get("scheduler_reserve_full_isl", True),
        watermark=config.get("watermark", 0.0),
        speculative_tokens=drafts,
        stages=config.get("pipeline_parallel_size", 1),
        windows=tuple(golden.get("kv_groups", (None,))),
        chunked=golden.get("chunked", False),
        states=golden.get("state_groups", 0),
    )


def replay(golden: dict[str, Any], *, plain: bool = False) -> GoldenReplay:
    """Run a golden scenario through our engine; all pipeline stages take an equal part of a step."""
    limits = limits_of(golden)
    latency = golden["config"]["latency"]
    terms = (latency["base"], latency.get("per_token", 0.0), latency.get("per_kv_token", 0.0))
    cost = LinearCost(*(each / limits.stages for each in terms))
    seen = GoldenReplay()
    names = BlockNames(limits.block_size)
    engine = (
        Engine(limits, cost, names, plain=plain, observer=seen)
        if limits.stages == 1
        else Pipeline(limits, [cost] * limits.stages, names, plain=plain, observer=seen)
    )
    requests = _requests(golden, names, limits.enable_prefix_caching)
    aborts = {str(a["id"]): a["time"] for a in golden.get("aborts", ())}
    for r, name in sorted(requests, key=lambda pair: pair[0].arrival):
        engine.advance(r.arrival)
        abort = aborts.get(name, float("inf"))
        seen_at = max(engine.clock, r.arrival)
        engine.submit(
            r, r.arrival, abort if abort > seen_at else float("inf")
        )  # the goldens' driver ignores earlier aborts
    engine.advance(float("inf"))
    ends = engine.log.ends
    seen.ended(engine.log.steps()["end"].tolist())
    rows = engine.log.ended
    for index, first, last, hit in zip(rows["index"], rows["first"], rows["last"], rows["hit"], strict=True):
        if first >= 0:
            seen.first_token[int(index)] = ends[int(first)]
            seen.finish[int(index)] = ends[int(last)]
        seen.cached[int(index)] = int(hit)
    return seen


def _requests(golden: dict[str, Any], names: BlockNames, caching: bool) -> list[tuple[Request, str]]:
    streams: dict[str, int] = {}
    requests = []
    for index, asked in enumerate(golden["requests"]):
        segments = asked.get("prefix", ()) if caching else ()
        chain = tuple((streams.setdefault(name, len(streams)), n) for name, n in segments)
        prompt = asked["prompt_len"]
        r = Request(
            index,
            asked["arrival_time"],
            prompt,
            asked["output_len"],
            asked.get("priority", 0),
            keys=names.names(chain, prompt),
            accept=tuple(asked["accept"]) if "accept" in asked else None,
        )
        requests.append((r, str(asked["id"])))
    return requests


def compare(golden: dict[str, Any], *, plain: bool = False) -> Verdict:
    """Replay one golden scenario and find the first difference."""
    name = str(golden.get("name", "without a name"))
    try:
        difference = _first_difference(golden, replay(golden, plain=plain))
        return Verdict(golden["name"], difference, len(golden["steps"]))
    except KeyError as missing:
        raise UserError(f"scenario {name}: the golden file lacks the key {missing}") from None
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"scenario {name}: not as a golden file should be: {error}") from None


def _first_difference(golden: dict[str, Any], seen: GoldenReplay) -> str | None:
    ids = [str(r["id"]) for r in golden["requests"]]
    for i, expected in enumerate(golden["steps"]):
        if i >= len(seen.steps):
            return f"step {i}: vLLM goes on, ours had ended"
        found = _step_difference(expected, seen.steps[i], ids)
        if found:
            return f"step {i}: {found}"
    if len(seen.steps) > len(golden["steps"]):
        return f"step {len(golden['steps'])}: vLLM had ended, ours goes on"
    gone = {str(a["id"]) for a in golden.get("aborts", ())}
    for index, name in enumerate(ids):
        for key, ours in (
            ("first_token", seen.first_token),
            ("finish", seen.finish),
            ("cached", seen.cached),
        ):
            theirs = golden[key].get(name)
            if name in gone and (key == "finish" or theirs is None):
                continue  # an abort's end is up to the caller, and may precede all steps
            mine = ours.get(index)
            if theirs is None and mine is None:
                continue
            if theirs is None or mine is None or abs(theirs - mine) > TIME_TOLERANCE:
                return f"request {name}: {key} is {theirs} in vLLM, {mine} in ours"
    return None


def _step_difference(expected: list[Any], ours: Step, ids: list[str]) -> str | None:
    start, end, tokens, preempted, free = ours
    named = {ids[i]: n for i, n in tokens.items()}
    if named != expected[2]:
        return f"scheduled tokens are {expected[2]} in vLLM, {named} in ours"
    out = [ids[i] for i in preempted]
    if out != expected[3]:
        return f"preempted are {expected[3]} in vLLM, {out} in ours"
    if free != expected[4]:
        return f"free blocks are {expected[4]} in vLLM, {free} in ours"
    for name, theirs, mine in (("scheduled at", expected[0], start), ("ends at", expected[1], end)):
        if abs(theirs - mine) > TIME_TOLERANCE:
            return f"{name} {theirs} in vLLM, {mine} in ours"
    return None
