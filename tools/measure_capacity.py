"""Measures the largest rate of a real vLLM engine under given limits, at the requests of a scenario.

    python tools/measure_capacity.py draw SCENARIO OUT.json           # the requests of a scenario with a rate of 1
    python tools/measure_capacity.py serve CONFIG_DIR OUT.json ORDERS FOLDER   # on a machine with a GPU and vLLM

`serve` starts one engine (dummy weights, settings of the drawn scenario) and reads orders from a file, to which more
can be added while it runs. An order is a line of its own:

    lone            lone prompts of many lengths, after pauses         batches     even batches of growing size
    rate NAME 24.5  all requests, with arrivals at 24.5 a second       stop        the end

Every request has tokens of its own, so the prefix cache is never hit. FOLDER gets NAME.clients.jsonl of each order: per
request the seconds when it was due, when it was sent, of the first and of the last token, all since the order began.
The recorder (`steelyard.profile.recorder`) writes the engine's steps to FOLDER/capture, if it is installed as vLLM's
plugin. `split FOLDER OUT` then makes a capture with one run per order. Times are of a client in the engine's front-end
process; there is no HTTP and no tokenizer.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_LEAD = 0.5  # seconds from an order to its first request
_PAUSE = 1.0  # seconds of rest after an order
_LONE_PAUSE = 0.15  # seconds between lone prompts
_VOCABULARY = (1_000, 120_000)  # token ids that prompts are made of
_BATCHES = (2, 4, 8, 16, 32, 64, 128)
_BATCH_PROMPTS = (48, 512, 2048)
_MOST_BATCH_TOKENS = 131_072  # of a batch's prompts


class Asked(NamedTuple):
    """A request: when it is due after the first, and its tokens."""

    due: float
    prompt: int
    output: int


class Order(NamedTuple):
    """What to send: groups of requests, each sent after the one before has ended."""

    name: str
    groups: list[list[Asked]]
    pause: float = 0.0  # seconds between groups


def draw(scenario_file: Path, out: Path) -> None:
    """Write the requests of a scenario at a rate of one a second, and its engine's settings."""
    from steelyard import load_scenario
    from steelyard.files.writing import write_text
    from steelyard.sim.run import draw_workload
    from steelyard.sim.setup import set_up

    scenario = load_scenario(scenario_file)
    work = draw_workload(set_up(scenario))
    columns = zip(work.at.tolist(), work.prompt.tolist(), work.output.tolist(), strict=True)
    rows = [[round(at, 6), prompt, output] for at, prompt, output in columns]
    engine = scenario.engine
    settings = {
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
    }
    write_text(out, json.dumps({"engine": settings, "requests": rows}))


def order_of(line: str, rows: Sequence[Sequence[float]]) -> Order:
    """The requests of an order."""
    kind, *words = line.split()
    if kind == "lone":
        lengths = [each for k in range(24) for each in (40 + 18 * k, 73 + 82 * k)]
        return Order("lone", [[Asked(0.0, length, 3)] for length in lengths], _LONE_PAUSE)
    if kind == "batches":
        even = [(n, p) for n in _BATCHES for p in _BATCH_PROMPTS if n * p <= _MOST_BATCH_TOKENS]
        return Order("batches", [[Asked(0.0, p, 24)] * n for n, p in even], _LONE_PAUSE)
    name, rate = words
    return Order(name, [[Asked(at / float(rate), int(prompt), int(output)) for at, prompt, output in rows]])


class Driver:
    """One engine, and the client that sends it requests."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self._orders = 0

    async def carry_out(self, order: Order) -> str:
        """Send an order's requests; what came of it in a line."""
        self._orders += 1
        rng = np.random.default_rng([20_25, self._orders])
        prompts = [[rng.integers(*_VOCABULARY, each.prompt).tolist() for each in group] for group in order.groups]
        began = time.monotonic()
        found: list[dict[str, Any]] = []
        for number, (group, tokens) in enumerate(zip(order.groups, prompts, strict=True)):
            start = time.monotonic() + (order.pause if number else _LEAD)
            sent = (
                self._one(f"{order.name}-{number}-{i}", each, ids, start, began)
                for i, (each, ids) in enumerate(zip(group, tokens, strict=True))
            )
            found += await asyncio.gather(*sent)
        self._write(order.name, began, found)
        await asyncio.sleep(_PAUSE)
        return _told(order.name, found)

    async def _one(self, name: str, asked: Asked, ids: list[int], start: float, began: float) -> dict[str, Any]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        length = {"max_tokens": asked.output, "min_tokens": asked.output, "ignore_eos": True}
        params = SamplingParams(**length, detokenize=False, output_kind=RequestOutputKind.DELTA)
        await asyncio.sleep(max(0.0, start + asked.due - time.monotonic()))
        sent = time.monotonic()
        first, tokens, cached = 0.0, 0, 0
        answers: AsyncIterator[Any] = self._engine.generate({"prompt_token_ids": ids}, params, name)
        async for answer in answers:
            now = time.monotonic()
            first = first or now
            tokens += len(answer.outputs[0].token_ids)
            cached = answer.num_cached_tokens or cached
        times = {"due": start + asked.due, "sent": sent, "first": first, "last": now}
        row = {"prompt": asked.prompt, "output": tokens, "cached": cached}
        return {"id": name, **{key: round(at - began, 6) for key, at in times.items()}, **row}

    def _write(self, name: str, began: float, rows: list[dict[str, Any]]) -> None:
        lines = [json.dumps({"name": name, "began": began}), *(json.dumps(row) for row in rows)]
        (self._folder / f"{name}.clients.jsonl").write_text("\n".join(lines) + "\n")


def _told(name: str, rows: list[dict[str, Any]]) -> str:
    ttft = np.array([row["first"] - row["due"] for row in rows])
    tpot = np.array([(row["last"] - row["first"]) / (row["output"] - 1) for row in rows if row["output"] > 1])
    late = max(row["sent"] - row["due"] for row in rows)
    span = max(row["last"] for row in rows)
    figures = " ".join(
        f"{what} p50 {np.percentile(values, 50):.4f} p95 {np.percentile(values, 95):.4f} mean {values.mean():.4f};"
        for what, values in (("ttft", ttft), ("tpot", tpot))
    )
    cached = sum(row["cached"] for row in rows)
    return f"{name}: {len(rows)} requests, {span:.1f} s; {figures} cached {cached}, sent {late:.4f} s late"


async def serve(config: Path, drawn: Path, orders: Path, folder: Path) -> None:
    """Start an engine and carry out orders until the one to stop."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    asked = json.loads(drawn.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(model=str(config), load_format="dummy", skip_tokenizer_init=True, **asked["engine"])
    )
    driver = Driver(engine, folder)
    print("engine started", time.monotonic(), flush=True)
    done = 0
    while True:
        lines = [line for line in orders.read_text().splitlines() if line.strip()]
        if done == len(lines):
            await asyncio.sleep(0.2)
            continue
        line = lines[done]
        done += 1
        if line == "stop":
            break
        print(await driver.carry_out(order_of(line, asked["requests"])), flush=True)
    engine.shutdown()
    print("stopped", flush=True)


def split(folder: Path, out: Path) -> None:
    """Make a capture with a run per order from what the recorder wrote for all of them."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("meta.json", "config.json"):
        (out / name).write_bytes((folder / "capture" / name).read_bytes())
    begun = {}
    for path in folder.glob("*.clients.jsonl"):
        head = json.loads(path.read_text().split("\n", 1)[0])
        begun[head["name"]] = head["began"]
    inorder = sorted(begun, key=lambda name: begun[name])
    zero = min(begun.values())
    for kind, key in (("requests", "at"), ("steps", "t_schedule")):
        rows = [json.loads(line) for line in (folder / "capture" / f"served.{kind}.jsonl").read_text().splitlines()]
        for name, following in zip(inorder, [*inorder[1:], ""], strict=True):
            end = begun.get(following, float("inf"))
            own = [_moved(row, zero) for row in rows if begun[name] <= row[key] < end]
            text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in own)
            (out / f"{name}.{kind}.jsonl.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _moved(row: dict[str, Any], zero: float) -> dict[str, Any]:
    """A row with its times since the first order, to 10 microseconds."""
    moved = {key: round(at - zero, 5) if key == "at" or key.startswith("t_") else at for key, at in row.items()}
    if "tokens" in moved:
        moved["tokens"] = [round(at, 4) for at in moved["tokens"]]
    return moved


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    paths = [Path(word) for word in words]
    if command == "draw":
        draw(paths[0], paths[1])
    elif command == "serve":
        os.environ.setdefault("STEELYARD_RECORD", str(paths[3] / "capture"))
        asyncio.run(serve(*paths))
    else:
        split(paths[0], paths[1])
