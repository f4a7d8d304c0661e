"""The page of `bench.aiconfigurator`: both answers, and what each carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from bench.sizing import Carried, Fleet, Question

_MADE = """
Made by `python -m bench.aiconfigurator docs/aiconfigurator.md` (it needs `steelyard[silicon]`); every figure is of that
run.
"""
_FOR = """
NVIDIA's [AIConfigurator](https://github.com/ai-dynamo/aiconfigurator) finds a starting configuration for a deployment:
model, GPUs, lengths and latency targets in; parallelism, batch size, replicas and the files to deploy them out. It
composes step times from measured operators, for a constant number of requests in flight, and says so: its TTFT and TPOT
are means at that concurrency. A service sees requests that come at random, and promises percentiles. The same question,
asked both ways:
"""
_TERMS = """
"Steelyard, means" is our answer at AIConfigurator's terms: steady concurrency, limits on means. "Steelyard, p95" is our
answer for Poisson arrivals with the limits on 95th percentiles. Each process is timed with its start.
"""
_JUDGED = """
Our answers are best here by construction: they were chosen by the simulation that judges them. What both are worth on
measured silicon is on the [fidelity page](fidelity.md).
"""
_QUESTION = """
- The question: the first usage example of `aiconfigurator cli default --help` (8 H200, 4,000 in, 500 out, TTFT 600 ms,
TPOT 50 ms), with the 16-bit Qwen3-32B and with vLLM, whose scheduler we simulate, instead of Qwen3-32B-FP8 and any
engine. It is asked by `cli_default`, the function behind that command, with its own defaults otherwise; that prefill
and decode share engines is its own choice.
"""
_OURS = """
- Ours are chosen from all GPUs in engines of TP 1, 2, 4 and 8, with 2,048, 8,192 and 16,384 tokens a step
(`bench/sizing.py`). Separate prefill engines are not among them.
"""
_LOADS = """
- Steady concurrency: users start spread over the longest answer within the limits, because equal requests that start at
once stay in step; requests sent meanwhile are left out. Poisson arrivals: three seeds of 2,000 requests, the first 200
of each left out.
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
    parts = (
        "# AIConfigurator's example question",
        _wrapped(_MADE),
        _wrapped(_FOR),
        _asked(question),
        "## The answers",
        _answers(found),
        "## AIConfigurator's answer, simulated",
        _simulated(question, found),
        "## What each carries, by our simulation",
        "The largest rate within the limits, and the regret: the share given away against the best answer.",
        _carried(found),
        _wrapped(_JUDGED),
        "## Where each setting comes from",
        "\n".join((_wrapped(_QUESTION), _limits(found), _wrapped(_OURS), _wrapped(_LOADS))),
    )
    return "\n\n".join(parts) + "\n"


def _asked(question: Question) -> str:
    return "> " + _wrapped(
        f"{question.model} on {question.gpus} {question.gpu} with vLLM, {question.prompt:,} tokens in and "
        f"{question.output} out, TTFT at most {_ms(question.ttft)} and TPOT at most {_ms(question.tpot)}: "
        "which fleet, and how much does it carry?"
    )


def _answers(found: Measured) -> str:
    rows = (
        (each.who, str(each.fleet), f"{each.said.rate:.1f}", _ms(each.said.ttft), _ms(each.said.tpot), *_seconds(each))
        for each in found.answers
    )
    said = (
        f"AIConfigurator {found.release} (tables of {found.tables}) gives {found.tokens_per_gpu:.0f} tokens/s per GPU."
    )
    table = _table(("by", "fleet", "requests/s", "TTFT", "TPOT", "wall s", "CPU s"), rows)
    return f"{table}\n\n{_wrapped(f'{said} {_TERMS}')}"


def _seconds(answer: Answer) -> tuple[str, str]:
    return f"{answer.wall:.1f}", f"{answer.cpu:.1f}"


def _simulated(question: Question, found: Measured) -> str:
    first, same, random = found.answers[0], found.as_said, found.at_its_rate
    misses = [
        f"a p95 {name} of {_ms(value)} instead of {_ms(limit)}"
        for name, value, limit in (("TTFT", random.ttft, question.ttft), ("TPOT", random.tpot, question.tpot))
        if value > limit
    ]
    outcome = " and ".join(misses) if misses else "p95 latencies within the limits"
    return _wrapped(
        f"At its own terms, {first.users} requests in flight on each replica, our simulation gives {same.rate:.1f} "
        f"requests/s where it says {first.said.rate:.1f}, a mean TTFT of {_ms(same.ttft)} where it says "
        f"{_ms(first.said.ttft)}, and a mean TPOT of {_ms(same.tpot)} where it says {_ms(first.said.tpot)}. "
        f"With Poisson arrivals at the rate it gives, users see {outcome}."
    )


def _carried(found: Measured) -> str:
    rows = []
    for answer in found.answers:
        cells = [answer.who, str(answer.fleet)]
        for table in (found.means, found.p95):
            rate, best = _rate(table[answer.who]), max(map(_rate, table.values()))
            cells += [f"{rate:.1f}", f"{1 - rate / best:.1%}"]
        rows.append(cells)
    return _table(("by", "fleet", "on means, requests/s", "regret", "on p95, Poisson, requests/s", "regret"), rows)


def _limits(found: Measured) -> str:
    first = found.answers[0].fleet
    return _wrapped(
        f"- Its fleet runs with the limits that its generator writes for vLLM: {first.seats} requests and "
        f"{first.step_tokens:,} tokens a step (batch, prompt and 1,500)."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first two columns are words, the others figures."""
    lines = (head, ["---", "---", *("---:" for _ in head[2:])], *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _wrapped(text: str) -> str:
    return fill(" ".join(text.split()), 120)


def _rate(carried: Carried | None) -> float:
    return carried.rate if carried else 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"
