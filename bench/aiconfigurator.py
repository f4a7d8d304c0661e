"""`python -m bench.aiconfigurator [PAGE.md]`: AIConfigurator's example question, asked of it and of us in one run.

Each answer is simulated at AIConfigurator's own terms (steady concurrency, limits on means) and as a service sees it
(Poisson arrivals, limits on p95). It needs `steelyard[silicon]`. With a path, the page is also written there.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.aiconfigurator_page import Answer, Measured, page
from bench.sizing import Carried, Fleet, Question, at_concurrency, at_rate, best_of, most_on_means, most_on_p95
from steelyard.files.writing import write_text
from steelyard.validate.rival import RELEASE

QUESTION = Question("qwen3-32b", "h200", gpus=8, prompt=4000, output=500, ttft=0.6, tpot=0.05)
_HUB, _SYSTEM = "Qwen/Qwen3-32B", "h200_sxm"  # its names of the model and the GPU
_SEATS, _SPARE_TOKENS = 512, 1500  # its generator's largest batch, and tokens of a step beside a prompt and a batch
_CAPACITIES = {"means": most_on_means, "p95": most_on_p95}


@dataclass(frozen=True)
class Timed:
    """What a process of its own printed, and its seconds."""

    found: dict[str, Any]
    wall: float
    cpu: float


def ask_theirs() -> dict[str, Any]:
    """AIConfigurator's best configuration, by its command `aiconfigurator cli default`."""
    ask = import_module("aiconfigurator.cli.api").cli_default
    question = QUESTION
    limits = {"ttft": question.ttft * 1e3, "tpot": question.tpot * 1e3}
    lengths = {"isl": question.prompt, "osl": question.output}
    result = ask(_HUB, question.gpus, _SYSTEM, backend="vllm", **lengths, **limits)
    best = result.best_configs[result.chosen_exp].iloc[0]
    return {
        "kind": result.chosen_exp,
        "tp": int(best["tp"]),
        "users": int(best["concurrency"]),
        "ttft": float(best["ttft"]) * 1e-3,
        "tpot": float(best["tpot"]) * 1e-3,
        "rate": float(best["seq/s"]) * question.gpus / int(best["num_total_gpus"]),
        "tokens_per_gpu": float(best["tokens/s/gpu_cluster"]),
        "tables": f"{best['backend']} {best['version']}",
    }


def ask_ours(terms: str) -> dict[str, Any]:
    """Our best fleet at some terms, and what it carries."""
    fleet, carried = best_of(QUESTION, _CAPACITIES[terms])
    return {"fleet": asdict(fleet), "carried": asdict(carried)}


def main(arguments: list[str]) -> int:
    """Ask both, simulate both answers, print and write the page."""
    if arguments[:1] == ["--theirs"]:
        print(json.dumps(ask_theirs()))
        return 0
    if arguments[:1] == ["--ours"]:
        print(json.dumps(ask_ours(arguments[1])))
        return 0
    try:
        installed = version("aiconfigurator")
    except PackageNotFoundError:
        installed = "none"
    if installed != RELEASE:
        needed = f"bench.aiconfigurator needs aiconfigurator {RELEASE} (found: {installed})"
        print(f"{needed}; pip install 'steelyard[silicon]'")
        return 2
    text = page(QUESTION, measured())
    print(text)
    if arguments:
        write_text(Path(arguments[0]), text)
    return 0


def measured() -> Measured:
    """Both answers, each timed in a process of its own, and what they carry."""
    theirs = _timed("--theirs")
    found = theirs.found
    if found["kind"] != "agg":
        raise RuntimeError(f"AIConfigurator answers with {found['kind']!r}, which this comparison does not simulate")
    tokens = _SEATS + QUESTION.prompt + _SPARE_TOKENS
    fleet = Fleet(found["tp"], QUESTION.gpus // found["tp"], tokens, _SEATS)
    said = Carried(found["rate"], found["ttft"], found["tpot"])
    answers = [Answer("AIConfigurator", fleet, said, theirs.wall, theirs.cpu, found["users"])]
    for terms in _CAPACITIES:
        ours = _timed("--ours", terms)
        own = Fleet(**ours.found["fleet"])
        answers.append(Answer(f"Steelyard, {terms}", own, Carried(**ours.found["carried"]), ours.wall, ours.cpu))
    return Measured(
        answers=answers,
        release=RELEASE,
        tables=found["tables"],
        tokens_per_gpu=found["tokens_per_gpu"],
        as_said=at_concurrency(QUESTION, fleet, found["users"]),
        at_its_rate=at_rate(QUESTION, fleet, said.rate),
        means={answer.who: most_on_means(QUESTION, answer.fleet) for answer in answers},
        p95={answer.who: most_on_p95(QUESTION, answer.fleet) for answer in answers},
    )


def _timed(*arguments: str) -> Timed:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "bench.aiconfigurator", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timed(json.loads(done.stdout.splitlines()[-1]), wall, cpu)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
