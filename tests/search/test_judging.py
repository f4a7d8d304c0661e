"""Verdicts: directions, chance, relevance, and what cannot be judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from steelyard.search.compare.figures import FIGURES
from steelyard.search.compare.judging import Judged, Pairing, judged

Values = dict[str, float | None]


def times(runs: Sequence[Values], factor: Callable[[], float], plus: Callable[[], float] = lambda: 0.0) -> list[Values]:
    """The same runs with every figure changed."""
    return [{name: (value or 0) * factor() + plus() for name, value in run.items()} for run in runs]


def runs(number: int, value: Callable[[str, int], float]) -> list[Values]:
    return [{each.name: value(each.name, i) for each in FIGURES} for i in range(number)]


def by_name(base: Sequence[Values], here: Sequence[Values], pairing: Pairing = "paired") -> dict[str, Judged]:
    return {each.name: each for each in judged(base, here, pairing, drawn=True)}


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        ("ttft.p95", "worse"),
        ("e2e.mean", "worse"),
        ("throughput.output_tokens_per_s", "better"),
        ("goodput.share", "better"),
        ("prefix_cache.hit_rate", "better"),
        ("cost.usd_per_million_tokens", "worse"),
        ("preemptions", "worse"),
        ("unserved", "worse"),
        ("gpus", "worse"),
        ("mfu", "higher"),
    ],
)
def test_what_is_higher_by_a_tenth(figure: str, verdict: str) -> None:
    noise = random.Random(1)
    base = runs(8, lambda name, _: 4.0 if name == "gpus" else noise.uniform(1, 3))
    here, there = times(base, lambda: 1.1 + noise.uniform(-0.01, 0.01)), times(base, lambda: 1 / 1.1)
    opposite = {"better": "worse", "worse": "better", "higher": "lower"}
    assert by_name(base, here)[figure].verdict == verdict
    assert by_name(base, there)[figure].verdict == opposite[verdict]
    found = by_name(base, here)[figure]
    assert found.interval is not None and found.difference is not None
    assert 0 < found.interval[0] <= found.difference <= found.interval[1] or figure == "gpus"


def test_pairs_tell_what_unpaired_runs_do_not() -> None:
    noise = random.Random(2)
    base = runs(8, lambda *_: noise.uniform(1, 3))
    here = times(base, lambda: 1.0, lambda: 0.05 + noise.uniform(-0.01, 0.01))
    assert by_name(base, here)["ttft.p95"].verdict == "worse"
    assert by_name(base, here, "unpaired")["ttft.p95"].verdict == "no clear difference"


def test_chance_is_hardly_ever_called_real() -> None:
    """With 30 figures by themselves, three of four columns would have a false verdict."""
    noise, columns, wrong, alone = random.Random(3), 200, 0, 0
    for _ in range(columns):
        found = by_name(runs(8, lambda *_: noise.gauss(10, 1)), runs(8, lambda *_: noise.gauss(10, 1)))
        tested = [each for name, each in found.items() if name != "gpus"]
        wrong += any(each.verdict != "no clear difference" for each in tested)
        alone += any(each.p is not None and each.p < 0.05 for each in tested)
    assert wrong <= 0.09 * columns and alone > columns / 2


def test_a_real_difference_may_be_too_small() -> None:
    noise = random.Random(4)
    base = runs(8, lambda *_: noise.uniform(1, 3))
    here = times(base, lambda: 1.005 + noise.uniform(-1e-4, 1e-4))
    found = by_name(base, here)["tpot.p50"]
    assert found.verdict == "too small to matter" and found.sure is not None and found.sure > 0.95


def test_the_same_count_more_with_each_of_few_seeds_may_be_chance() -> None:
    base, here = runs(4, lambda *_: 2.0), runs(4, lambda *_: 3.0)
    assert {each.verdict for each in judged(base, here, "paired", drawn=True) if each.name != "gpus"} == {
        "no clear difference"
    }
    assert {each.verdict for each in judged(base, here, "paired", drawn=False)} == {"better", "worse", "higher"}


def test_equal_runs_differ_in_nothing() -> None:
    base = runs(5, lambda _, i: 1.0 + i)
    for each in judged(base, base, "paired", drawn=True):
        assert each.verdict == "no clear difference" and each.difference == 0 and each.interval == (0, 0)


def test_what_is_not_known_is_not_judged() -> None:
    base, here = runs(3, lambda _, i: 1.0 + i), runs(3, lambda _, i: 2.0 + i)
    here[1]["ttft.p95"] = None
    assert by_name(base, here)["ttft.p95"].verdict == "not judged"
    for run in base:
        run["ttft.p95"] = None
    assert "ttft.p95" not in by_name(base, here)
    single = judged(base[:1], here[:1], "single", drawn=True)
    assert {each.verdict for each in single if each.name != "gpus"} == {"not judged"}
