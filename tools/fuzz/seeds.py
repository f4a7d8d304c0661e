"""Small valid files of every format that the tool reads, from which mutations start."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from steelyard.balance.log import Journal, is_event, read_event, read_header
from steelyard.cost import HostTerms
from steelyard.deploy import emit
from steelyard.live.store import Store
from steelyard.posttrain.run import posttrain
from steelyard.scenario import load_posttrain, scenario_from_dict
from tools.fuzz.scenarios import EXAMPLES

ROOT = Path(__file__).parents[2]
_CATALOG = ROOT / "src" / "steelyard" / "model" / "catalog"
_BUNDLE = ROOT / "src" / "steelyard" / "cost" / "bundles" / "h200.jsonl.gz"
_RECORDED = ROOT / "tests" / "data" / "h200-recorded" / "llama-3.1-8b-short"
_DECISIONS = ROOT / "tests" / "data" / "vllm-0.32-decisions.jsonl.gz"

AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
MOONCAKE = b"""{"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [0, 1, 2]}
{"timestamp": 300, "input_length": 1700, "output_length": 26, "hash_ids": [0, 1, 3, 4]}
{"timestamp": 900, "input_length": 500, "output_length": 9, "hash_ids": [0]}
"""
BENCH = b"""{"arrival_time": 0.0, "prompt_len": 120, "output_len": 20}
{"arrival_time": 0.4, "prompt_token_ids": [5, 6, 7, 8], "output_len": 3}
{"arrival_time": 0.9, "prompt_token_ids": [5, 6, 7, 9], "output_token_ids": [1, 2]}
"""
GATEWAY = b"""{"at": 1790000000.25, "prompt_tokens": 120, "output_tokens": 20, "session": "a1b2"}
{"at": 1790000001.5, "prompt_tokens": 180, "output_tokens": 9, "session": "a1b2"}
{"at": 1790000003.0, "prompt_tokens": null, "output_tokens": 4, "session": null}
"""
CAPTURE = json.dumps(
    {
        "requests": [
            {"id": "a", "at": 0.0, "prompt": 300, "output": 20, "prefix": ["p", 64]},
            {"id": "b", "at": 0.2, "prompt": 200, "output": 10, "prefix": ["p", 64]},
            {"id": "c", "after": "a", "think": 0.5, "prompt": 400, "output": 5},
        ]
    }
).encode()
_DISAGGREGATED = scenario_from_dict(
    {
        "model": "qwen3-8b",
        "fleet": {"pools": [{"role": "prefill", "gpu": "h200"}, {"role": "decode", "gpu": "h100", "tp": 2}]},
        "workload": {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 10, "prompt": 10, "output": 10},
    }
)
TRACES = {"t.csv": AZURE, "t.jsonl": MOONCAKE, "b.jsonl": BENCH, "g.jsonl": GATEWAY, "t.workload.json": CAPTURE}
DEPLOYMENTS = {  # of two pools each, so that pools, routers and manifests are all read
    kind: "\n".join(emit(_DISAGGREGATED, target).files.values()).encode()
    for kind, target in (("vllm-serve", "vllm"), ("sglang", "sglang"), ("dynamo", "dynamo"), ("kserve", "kserve"))
}
_TRAINED = load_posttrain(EXAMPLES / "posttrain" / "search-48.yaml", ["rollout=[{tp: 2, replicas: 16}]"])
_AS_WRITTEN = """NODES=${NODES:-2}
ARGS=(
  %s
)
"""
TRAINERS = {  # as emitted, with variables and an array before it
    "verl": (_AS_WRITTEN % "trainer.nnodes=$NODES data.seed=3") + emit(_TRAINED, "verl").files["train.sh"],
    "slime": (_AS_WRITTEN % "--actor-num-nodes $NODES --seed 3") + emit(_TRAINED, "slime").files["train.sh"],
}
DEPLOYMENTS |= {kind: text.replace('"$@"', '"${ARGS[@]}" "$@"').encode() for kind, text in TRAINERS.items()}

TRAJECTORIES = "".join(
    json.dumps(
        {
            "id": f"{task}{sample}",
            "task": f"t{task}",
            "prompt_tokens": 300 + 50 * task,
            "turns": [{"generated": 50 + sample, "tool": "a", "returned": 20, "latency": 1.0}, {"generated": 30}],
        }
    )
    + "\n"
    for task in range(6)
    for sample in range(2)
).encode()
SESSIONS = "".join(
    json.dumps({"session": f"s{number}", "agent": "x", "calls": [[0, 500 + number, 60], [900_000, 700, 30]]}) + "\n"
    for number in range(6)
).encode()
SWE = "".join(
    json.dumps(
        {
            "task": f"repo-{number}",
            "exit": "submitted",
            "turns": [{"generated": 40, "tool": "bash", "returned": 100}, {"generated": 9 + number}],
        }
    )
    + "\n"
    for number in range(6)
).encode()
CALIBRATION = json.dumps({"terms": asdict(HostTerms())}).encode()


@cache
def configs() -> dict[str, Any]:
    """Configurations of models, by name: one of each family."""
    names = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma-3-4b", "gpt-oss-20b", "qwen3-30b-a3b", "phi-4")
    found = {name: json.loads((_CATALOG / f"{name}.json").read_text(encoding="utf-8")) for name in names}
    for each in found.values():
        for unread in ("_aliases", "_name_or_path", "architectures"):
            each.pop(unread, None)
    return found


@cache
def bundle(every: int = 40) -> bytes:
    """A thinned profile: its first line, and then one point of so many."""
    with gzip.open(_BUNDLE, "rb") as file:
        first = next(file)
        return first + b"".join(islice(file, 0, None, every))


@cache
def capture_files() -> dict[str, bytes]:
    """One short run of a recorded engine, unpacked."""
    found = {}
    for name in ("meta.json", "config.json", "lone.requests.jsonl.gz", "lone.steps.jsonl.gz"):
        data = (_RECORDED / name).read_bytes()
        found[name] = gzip.decompress(data) if name.endswith(".gz") else data
    return found


@cache
def decisions() -> bytes:
    """The shortest scenarios of a golden file."""
    rows = gzip.decompress(_DECISIONS.read_bytes()).splitlines()
    return b"\n".join(sorted(rows, key=len)[:3]) + b"\n"


@cache
def events() -> bytes:
    """The log of a short post-training run."""
    settings = ["trajectories={preset: search, prompts: 2, group: 2}", "steps=1", "cost={source: analytic}"]
    file = io.StringIO()
    posttrain(load_posttrain(EXAMPLES / "posttrain" / "search-48.yaml", settings), journal=Journal(file, "fuzz"))
    return file.getvalue().encode()


@cache
def store() -> bytes:
    """The same log as a controller's store."""
    header, *rows = [json.loads(line) for line in events().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        kept = Store(path, read_header(header, "seed").settings)
        kept.append([read_event(row, "seed") for row in rows if is_event(row)])
        kept.close()
        return path.read_bytes()
