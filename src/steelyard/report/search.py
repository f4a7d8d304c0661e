"""The answer of a search: in words, as JSON, and as a page. The first line of each level is what to buy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from steelyard.search.answer import Answer, LevelAnswer
from steelyard.search.search import FleetChoice, SearchResult
from steelyard.words import count, dollars, percent, plural, seconds, significant

_UNITS = {
    "throughput": "requests/s",
    "per-gpu": "requests/s per GPU",
    "per-dollar": "requests/s per dollar an hour",
    "per-watt": "requests/s per watt",
    "cost": "dollars an hour",
}


def search_lines(answer: Answer) -> Iterator[str]:
    """The answer in words."""
    found = answer.found
    space = found.space
    works = space.considered - space.no_room - space.refused
    bounded = sum(tally.by_bound for tally in found.tallies.values())
    simulated = sum(tally.simulated for tally in found.tallies.values())
    yield (
        f"{count(space.considered)} candidates: {count(space.no_room)} do not fit their GPUs' memory, "
        f"{count(space.refused)} cannot be built, {count(works)} can; bounds rule out {count(bounded)} of them, "
        f"{count(simulated)} were simulated"
    )
    for level in answer.levels:
        yield ""
        yield from level_lines(answer, level)


def search_words(found: SearchResult) -> Iterator[str]:
    """What to buy at each level, of a search that was not asked what binds or how sure it is."""
    for level in found.levels:
        name, best = f"{level.name}: " if level.name else "", level.best
        if best is None:
            yield f"{name}no candidate meets the limits at any rate"
        else:
            yield f"{name}{best.architecture}, {best.name}: {_carries(best)}"


def level_lines(answer: Answer, level: LevelAnswer) -> Iterator[str]:
    """What to buy at a level, the next best, how sure that is, and the best of each architecture."""
    name = f"{level.level.name}: " if level.level.name else ""
    best = level.level.best
    if best is None:
        yield f"{name}no candidate meets the limits at any rate"
        return
    yield f"{name}{best.architecture}, {best.name}"
    yield f"  {_carries(best)}"
    yield f"  binds: {level.binds}"
    if level.other is not None and level.sure is not None:
        sure = level.sure
        if answer.found.scenario.search.objective == "cost":
            yield f"  next best: {level.other.architecture}, {level.other.name}; {_carries(level.other)}"
            yield f"  the first carries the rate with {_chance(sure.chance)} certainty (seeds, errors of costs)"
            yield f"  {_spread(level)}"
            return
        yield (
            f"  next best: {level.other.architecture}, {level.other.name}; over seeds the first is "
            f"{percent(abs(sure.margin - 1))} {'better' if sure.margin >= 1 else 'worse'}, and it is better with "
            f"{_chance(sure.chance)} certainty (seeds and stated errors of costs)"
        )
        turned = sure.overturned()
        yield f"  the next best wins with: {', '.join(turned)}" if turned else "  no single change overturns it"
        yield f"  {_spread(level)}"
    for each in level.level.by_architecture():
        if each is not best:
            yield f"  best {each.architecture}: {each.name}; {_carries(each)}"


def _carries(choice: FleetChoice) -> str:
    latencies = ", ".join(f"{name} {seconds(value)}" for name, value in choice.outcome.values.items())
    return (
        f"{significant(choice.rate)} requests/s, {count(choice.output_tokens_per_s)} output tokens/s on "
        f"{plural(choice.gpus, 'GPU')} for {dollars(choice.usd_per_hour)} an hour ({_per_million(choice)} per million "
        f"output tokens); {latencies}"
    )


def _per_million(choice: FleetChoice) -> str:
    tokens = choice.output_tokens_per_s * 3600 / 1e6
    return dollars(choice.usd_per_hour / tokens) if tokens else "–"


def _chance(value: float) -> str:
    return "more than 99 %" if value > 0.99 else "less than 1 %" if value < 0.01 else f"{value * 100:.0f} %"


def _spread(level: LevelAnswer) -> str:
    assert level.sure is not None
    base, _ = level.sure.rates["as it is"]
    if not base:
        return "it does not carry its rate again"
    told = (f"{name} {one / base - 1:+.1%}" for name, (one, _) in level.sure.rates.items() if name != "as it is")
    return f"its rate if an input changes: {', '.join(told)}"


def search_figures(answer: Answer) -> dict[str, Any]:
    """All figures of the answer."""
    found = answer.found
    return {
        "name": found.scenario.name,
        "objective": found.scenario.search.objective,
        "unit": _UNITS[found.scenario.search.objective],
        "candidates": {
            "considered": found.space.considered,
            "no_room": found.space.no_room,
            "refused": found.space.refused,
        },
        "by_architecture": {name: asdict(tally) for name, tally in found.tallies.items()},
        "levels": [_level_figures(level) for level in answer.levels],
    }


def _level_figures(level: LevelAnswer) -> dict[str, Any]:
    sure = level.sure
    return {
        "level": level.level.name,
        "slo": {limit.name: limit.seconds for limit in level.level.slo.on_run()},
        "binds": level.binds,
        "choices": [_choice_figures(each) for each in level.level.choices],
        "frontier": [each.name for each in level.level.frontier()],
        "sureness": None
        if sure is None
        else {"chance": sure.chance, "margin": sure.margin, "rates": {k: list(v) for k, v in sure.rates.items()}},
    }


def _choice_figures(choice: FleetChoice) -> dict[str, Any]:
    return {
        "architecture": choice.architecture,
        "name": choice.name,
        "rate": choice.rate,
        "output_tokens_per_s": choice.output_tokens_per_s,
        "score": choice.score,
        "gpus": choice.gpus,
        "usd_per_hour": choice.usd_per_hour,
        "watts": choice.watts,
        "bound": choice.bound,
        "estimate": choice.estimate,
        "values": dict(choice.outcome.values),
        "quantization": choice.quantization,
        "fleet": choice.fleet,
    }
