"""The page of `bench.aiconfigurator`: both answers, and what each carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.sizing import Carried, Fleet, Question

_HEAD = """# AIConfigurator's example question

Made by `python -m bench.aiconfigurator docs/aiconfigurator.md` (it needs `steelyard[silicon]`); every figure is of that run.

NVIDIA's [AIConfigurator](https://github.com/ai-dynamo/aiconfigurator) finds a starting configuration for a deployment:
model, GPUs, lengths and latency targets in; parallelism, batch size, replicas and the files to deploy them out. It composes
step times from measured operators, for a constant number of requests in flight, and says so: its TTFT and TPOT are means at
that concurrency. A service sees requests that come at random, and promises percentiles. The same question, asked both ways:

"""


@dataclass(frozen=True)
class Answer:
    """Who says which fleet carries what, and the seconds it took to say so."""

    who: str
    fleet: Fleet
    said: Carried
    wall: float
    cpu: float
    users: int | None = None  # of each replica, where the answer names them


@dataclass(frozen=True)
class Measured:
    """The answers, AIConfigurator's first, and what they carry by our simulation."""

    answers: Sequence[Answer]
    release: str
    tables: str
    tokens_per_gpu: float
    as_said: Carried  # its fleet at its concurrency
    at_its_rate: Carried  # its fleet with Poisson arrivals at the rate it gives
    means: Mapping[str, Carried | None]
    p95: Mapping[str, Carried | None]


def page(question: Question, found: Measured) -> str:
    """The page as Markdown."""
    parts = (_asked(question, found), _answers(found), _simulated(question, found), _carried(found), _settings(found))
    return _HEAD + "\n".join(parts)


def _asked(question: Question, found: Measured) -> str:
    return (
        f"> {question.model} on {question.gpus} {question.gpu} with vLLM, {question.prompt:,} tokens in and "
        f"{question.output} out, TTFT at most {_ms(question.ttft)} and TPOT at most {_ms(question.tpot)}: which fleet, and "
        "how much does it carry?\n"
    )


def _answers(found: Measured) -> str:
    rows = [
        f"| {each.who} | {each.fleet} | {each.said.rate:.1f} | {_ms(each.said.ttft)} | {_ms(each.said.tpot)} | "
        f"{each.wall:.1f} | {each.cpu:.1f} |"
        for each in found.answers
    ]
    head = "| by | fleet | requests/s | TTFT | TPOT | wall s | CPU s |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    return "\n".join(
        (
            "## The answers\n",
            head,
            *rows,
            f"\nAIConfigurator {found.release} (tables of {found.tables}) gives {found.tokens_per_gpu:.0f} tokens/s per GPU.",
            "\"Steelyard, means\" is our answer at AIConfigurator's terms: steady concurrency, limits on means. \"Steelyard, p95\"",
            "is our answer for Poisson arrivals with the limits on 95th percentiles. Each process is timed with its start.\n",
        )
    )


def _simulated(question: Question, found: Measured) -> str:
    first = found.answers[0]
    misses = [
        f"a p95 {name} of {_ms(value)} instead of {_ms(limit)}"
        for name, value, limit in (
            ("TTFT", found.at_its_rate.ttft, question.ttft),
            ("TPOT", found.at_its_rate.tpot, question.tpot),
        )
        if value > limit
    ]
    outcome = " and ".join(misses) if misses else "p95 latencies within the limits"
    return (
        "## AIConfigurator's answer, simulated\n\n"
        f"At its own terms, {first.users} requests in flight on each replica, our simulation gives "
        f"{found.as_said.rate:.1f} requests/s where it says {first.said.rate:.1f}, a mean TTFT of {_ms(found.as_said.ttft)} "
        f"where it says {_ms(first.said.ttft)}, and a mean TPOT of {_ms(found.as_said.tpot)} where it says "
        f"{_ms(first.said.tpot)}. With Poisson arrivals at the rate it gives, users see {outcome}.\n"
    )


def _carried(found: Measured) -> str:
    best = {name: max(_rate(each) for each in table.values()) for name, table in (("m", found.means), ("p", found.p95))}
    rows = []
    for answer in found.answers:
        means, p95 = _rate(found.means[answer.who]), _rate(found.p95[answer.who])
        rows.append(
            f"| {answer.who} | {answer.fleet} | {means:.1f} | {1 - means / best['m']:.1%} | {p95:.1f} | {1 - p95 / best['p']:.1%} |"
        )
    return "\n".join(
        (
            "## What each carries, by our simulation\n",
            "The largest rate within the limits, and the regret: the share given away against the best answer.\n",
            "| by | fleet | on means, requests/s | regret | on p95, Poisson, requests/s | regret |",
            "| --- | --- | ---: | ---: | ---: | ---: |",
            *rows,
            "\nOur answers are best here by construction: they were chosen by the simulation that judges them. What both are worth on",
            "measured silicon is on the [fidelity page](fidelity.md).\n",
        )
    )


def _settings(found: Measured) -> str:
    first = found.answers[0].fleet
    return (
        "## Where each setting comes from\n\n"
        "- The question: the example of AIConfigurator's documentation (Qwen3-32B on H200, 4,000 in, 500 out) with 8 GPUs, "
        "vLLM, and limits that more than one layout meets. It is asked by `cli_default`, the function behind "
        "`aiconfigurator cli default`, with its own defaults otherwise; it chose one pool of equal engines itself.\n"
        f"- Its fleet runs with the limits that its generator writes for vLLM: {first.seats} requests and "
        f"{first.step_tokens:,} tokens a step (batch, prompt and 1,500).\n"
        "- Ours are chosen from all GPUs in engines of TP 1, 2, 4 and 8, with 2,048, 8,192 and 16,384 tokens a step "
        "(`bench/sizing.py`). Separate prefill engines are not among them.\n"
        "- Steady concurrency: users start spread over the longest answer within the limits, because equal requests that "
        "start at once stay in step; requests sent meanwhile are left out. Poisson arrivals: three seeds of 2,000 requests, "
        "the first 200 of each left out.\n"
    )


def _rate(carried: Carried | None) -> float:
    return carried.rate if carried else 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"
