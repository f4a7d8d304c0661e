"""Captures that our own engine makes, as a recorder would write them."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import scenario_from_dict
from steelyard.balance.route.serving import serving_router
from steelyard.cost import RESTED, HostTerms
from steelyard.engine import Engine
from steelyard.fleet import Desk, run_fleet
from steelyard.sim import set_up
from steelyard.sim.request_table import request_table
from steelyard.workload import build_workload

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
META: dict[str, Any] = {
    "kw": {"max_model_len": "8192"},
    "block_size": 16,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "async_scheduling": True,
    "prefix_caching": True,
    "cudagraph": "FULL_AND_PIECEWISE",
    "gpu": "h200",
}
SLOW = replace(
    HostTerms(),
    step=2.6e-3,
    request=36e-6,
    prompt=0.4e-3,
    pieces=0.34e-3,
    eager=0.98e-3,
    ingest=0.9e-3,
    ingest_token=1e-6,
    output=2.5e-3,
    output_request=50e-6,
)


@dataclass
class StepLog:
    """Every step as a recorder would write it, but for the times of its result."""

    prompt: dict[int, int]
    rows: list[dict[str, Any]] = field(default_factory=list)
    computed: dict[int, int] = field(default_factory=dict)

    def step(self, scheduled_at: float, tokens: dict[int, int], preempted: list[int], free: int) -> None:
        chunks, lengths = [], []
        for index, count in tokens.items():
            before = self.computed.get(index, 0)
            if count == 1 and before >= self.prompt[index]:
                lengths.append(before)
            else:
                chunks.append([count, before])
            self.computed[index] = before + count
        self.rows.append(
            {
                "t_schedule": scheduled_at,
                "n_decode": len(lengths),
                "kv_decode": sum(lengths),
                "kv_decode_max": max(lengths, default=0),
                "chunks": chunks,
                "preempted": 0,
                "running": len(tokens),
                "waiting": 0,
            }
        )


def capture(
    folder: Path,
    workloads: dict[str, list[dict[str, Any]]],
    terms: HostTerms = SLOW,
    model: dict[str, Any] = MODEL,
) -> Path:
    """A folder as our own engine would leave it behind on a host with these terms."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(model))
    limits = {"max_model_len": 8192, "max_num_seqs": 128, "max_num_batched_tokens": 2048}
    (folder / "meta.json").write_text(json.dumps({**META, "fresh": True}))
    for name, asked in workloads.items():
        (folder / f"{name}.workload.json").write_text(json.dumps({"requests": asked}))
        run = scenario_from_dict(
            {
                "model": "config.json",
                "fleet": {"gpu": "h200"},
                "engine": {**limits, "fresh": True},
                "workload": {"trace": {"file": f"{name}.workload.json", "format": "capture"}},
            },
            base_dir=folder,
        )
        setup = set_up(run, terms).pools[0]
        work = build_workload(run.workload, 0, folder)
        desk = Desk(work, [setup.limits], host=terms)
        log = StepLog(dict(enumerate(work.prompt.tolist())))
        engine = Engine(
            setup.limits,
            setup.cost,
            desk.names,
            wake=terms.wake,
            taking_in=terms.taking_in,
            rested=RESTED,
            first_uses=setup.cost.first_uses(),
            observer=log,
        )
        run_fleet([engine], desk, serving_router("round-robin", 1, 0))
        table = request_table(work, desk, [engine.log])
        first, last = (table[moment] - table["taken"] for moment in ("first_token", "finish"))
        answers = [
            {
                "id": row["id"],
                "at": float(table["taken"][i]),
                "cached": int(table["cached"][i]),
                "tokens": np.linspace(first[i], last[i], row["output"]).tolist(),
            }
            for i, row in enumerate(asked)
        ]
        steps = [{**row, "t_update": end} for row, end in zip(log.rows, engine.log.ends, strict=True)]
        for kind, rows in (("requests", answers), ("steps", steps)):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}.{kind}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def chat(count: int, seed: int, gap: float = 0.1) -> list[dict[str, Any]]:
    dice = np.random.default_rng(seed)
    at = np.cumsum(dice.exponential(gap, count))
    prompts, outputs = dice.integers(20, 1800, count), dice.integers(2, 3, count)
    outputs = np.where(dice.random(count) < 0.8, dice.integers(50, 300, count), outputs)
    return [{"id": i, "at": float(at[i]), "prompt": int(prompts[i]), "output": int(outputs[i])} for i in range(count)]


LONE = [{"id": i, "at": 0.5 * i, "prompt": 40 + 110 * (i % 16), "output": 2} for i in range(40)]
