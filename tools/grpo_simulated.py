"""`python -m tools.grpo_simulated LOG`: steps of a GRPO run on two H200 engines, beside a simulation of its samples.

The simulation gives each engine and the trainer an H200 of its own. It knows nothing of HTTP, files or probes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from steelyard.cli.console import say
from steelyard.live.explain import log_of
from steelyard.live.tiny.model import tiny_config
from steelyard.posttrain.history import DecidedLog, LoggedSample, run_history
from steelyard.posttrain.run import drive
from steelyard.scenario.posttrain_loading import posttrain_from_dict

_SETTLED = 5  # steps from which on nothing is moved in the log


def _row(sample: LoggedSample) -> dict[str, object]:
    turns = [
        {
            "generated": max(1, turn.generated),
            "tool": turn.tool,
            "returned": turn.returned,
            "latency": turn.latency or 0.0,
        }
        for turn in sample.turns
    ]
    last = {"generated": turns[-1]["generated"]}
    prompt = max(1, sample.prompt_tokens)
    return {"id": sample.name, "task": sample.group, "prompt_tokens": prompt, "turns": [*turns[:-1], last]}


def main(path: Path) -> None:
    """Print the median step of both, once the run has settled."""
    history = run_history(DecidedLog(log_of(path), str(path)))
    rounds = history.settings.rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [json.dumps(_row(each)) for each in history.samples.values() if each.ended]
        (folder / "trajectories.jsonl").write_text("\n".join(rows) + "\n")
        (folder / "config.json").write_text(json.dumps(tiny_config()))
        scenario = posttrain_from_dict(
            {
                "name": "beside",
                "model": "./config.json",
                "gpu": "h200",
                "trajectories": {"file": "trajectories.jsonl", "prompts": rounds.groups, "group": rounds.size},
                "mode": "one-step-off",
                "rollout": [{"tp": 1, "replicas": 2}],
                "training": {"dp": 1, "micro_batch_tokens": 16384},
                "engine": {"max_num_seqs": 64, "enforce_eager": True, "gpu_memory_utilization": 0.1},
                "steps": rounds.steps,
            }
        ).based_in(folder, str(path))
        simulated = [step.synced for step in drive(scenario).loop.record.steps]
    realised = history.trained
    for what, times in (("realised", realised), ("simulated", simulated)):
        spans = [after - before for before, after in pairwise(times)][_SETTLED:]
        say(f"{what}: {median(spans):.3f} s a step (median of {len(spans)})")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
