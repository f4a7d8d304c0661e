"""Estimators: against plain references, blind to the future, and good enough on real trajectories."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.estimate import (
    UNKNOWN,
    Blind,
    ByTurn,
    Estimator,
    History,
    Left,
    Noisy,
    Oracle,
    PaperTrie,
    SuffixBackoff,
    signal,
    suffix,
    surface,
)
from steelyard.balance.estimate.backoff import SuffixTable, contexts
from steelyard.balance.estimate.features import PLAIN, SHARE, UNIT, plain_features, tool_shares
from steelyard.balance.estimate.history import tool_returns
from steelyard.balance.estimate.recent import RecentSamples
from steelyard.balance.estimate.spread import Spread
from steelyard.balance.estimate.surface import Surface
from steelyard.balance.rounds import RoundSettings
from steelyard.balance.settings import CoreSettings
from steelyard.cli import main
from steelyard.errors import UserError
from steelyard.records import OUTCOMES, Trajectory, Turn
from steelyard.validate.estimators import auc, evaluate_file, r2
from support.paths import SHARED

TRAJECTORIES = SHARED / "trajectories"
shared = pytest.mark.skipif(not TRAJECTORIES.is_dir(), reason="the shared data folder is not there")
LEARNERS: list[Callable[[], Estimator]] = [Blind, ByTurn, PaperTrie, SuffixBackoff]

turns = st.builds(
    Turn,
    generated=st.integers(0, 3000),
    tool=st.sampled_from(["ls", "edit", "test", None]),
    outcome=st.sampled_from(OUTCOMES),
    returned=st.sampled_from([0, 500, 501, 5000, 5001]),
    latency=st.sampled_from([None, 0.5, 90.0]),
)


def world(seed: int, count: int, tasks: int = 6) -> list[Trajectory]:
    """Trajectories whose tools tell: after a failed test there is much to do, and patient agents work on for long."""
    random = Random(seed)
    made = []
    for number in range(count):
        task = f"t{number % tasks}"
        patient = random.random() < 0.5
        rows = [Turn(random.randint(80, 120) * (3 if patient else 1), "look", "ok", random.randint(10, 2000))]
        for _ in range(random.randint(15, 30) if patient else random.randint(3, 9)):
            failed = random.random() < 0.5
            rows.append(Turn(rows[0].generated, "test", "error" if failed else "ok", random.randint(10, 900), 2.0))
        made.append(Trajectory(str(number), task, task, tuple(rows)))
    return made


def at(trajectory: Trajectory, count: int) -> History:
    history = History.start(trajectory)
    for turn in trajectory.turns[:count]:
        history.add(turn)
    return history


@given(st.lists(turns, min_size=1, max_size=12))
def test_a_history_is_the_sum_of_its_turns(rows: list[Turn]) -> None:
    history = at(Trajectory("a", "p", "t", tuple(rows), prompt_tokens=7), len(rows))
    assert history.generated == sum(turn.generated for turn in rows)
    assert history.returned == sum(turn.returned for turn in rows)
    assert history.errors == sum(turn.outcome != "ok" for turn in rows)
    assert history.tool_seconds == sum(turn.latency or 0 for turn in rows)
    context, read = 7, 0
    for turn in rows:
        read += context + turn.generated
        context += turn.generated + turn.returned
    assert history.read == read
    same = [turn.tool == rows[-1].tool for turn in reversed(rows)]
    assert history.repeats == (same.index(False) if False in same else len(same)) - 1
    good = [turn.outcome == "ok" for turn in reversed(rows)]
    assert history.errors_in_row == (good.index(True) if True in good else len(good))
    assert sum(history.tools.values()) == len(rows)
    features = plain_features(history)
    assert len(features) == PLAIN and all(map(math.isfinite, features))


def test_signals_have_libras_classes() -> None:
    sizes = [signal(Turn(1, "x", "ok", size))[1] for size in (0, 500, 501, 5000, 5001)]
    assert sizes == [0, 0, 1, 1, 2]
    assert signal(Turn(1, "x", "timeout", 501)) == ("x", 1, "timeout")


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=40), st.integers(1, 20))
def test_recent_is_the_mean_and_p90_of_the_last(samples: list[int], most: int) -> None:
    recent = RecentSamples(most)
    for sample in samples:
        recent.add(sample)
    last = samples[-most:]
    left = recent.left()
    assert left.mean == pytest.approx(np.mean(last))
    assert sum(each <= left.p90 for each in last) >= 0.9 * len(last)
    below = [each for each in last if each < left.p90]
    assert len(below) < 0.9 * len(last)


@given(st.lists(st.tuples(st.sampled_from("pq"), st.lists(turns, min_size=1, max_size=5)), max_size=12), st.data())
def test_the_trie_is_a_dictionary_of_prefixes(done: list[tuple[str, list[Turn]]], data: st.DataObject) -> None:
    trie = PaperTrie()
    whole: dict[tuple[object, ...], list[int]] = {}
    for number, (prompt, rows) in enumerate(done):
        each = Trajectory(str(number), prompt, prompt, tuple(rows))
        trie.learn(each)
        for history, left in tool_returns(each):
            prefix = tuple(map(signal, history.turns))
            whole.setdefault((prompt, *prefix), []).append(left)
            whole.setdefault((None, *prefix), []).append(left)
            whole.setdefault((), []).append(left)
    prompt = data.draw(st.sampled_from("pqr"))
    asked = data.draw(st.lists(turns, min_size=1, max_size=6))
    keys = [(owner, *map(signal, asked[:n])) for owner in (prompt, None) for n in range(len(asked), 0, -1)]
    samples = next((whole[key] for key in [*keys, ()] if key in whole), [])[-200:]
    history = at(Trajectory("x", prompt, prompt, tuple(asked)), len(asked))
    expected = RecentSamples()
    for sample in samples:
        expected.add(sample)
    assert trie.observe(history) == expected.left()
    trie.rebuild()
    assert trie.observe(history) == expected.left()


def test_a_rebuilt_trie_forgets_all_but_the_last() -> None:
    old, new = (Trajectory(name, name, name, (Turn(1, "x"), Turn(left))) for name, left in (("a", 100), ("b", 900)))
    trie = PaperTrie(keep=1)
    trie.learn(old)
    trie.learn(new)
    history = at(replace(old, prompt="c"), 1)
    assert trie.observe(history).mean == 500
    trie.rebuild()
    assert trie.observe(history).mean == 900


def test_back_off_shrinks_towards_shorter_suffixes() -> None:
    table = SuffixTable()
    common = contexts(at(Trajectory("a", "p", "t", (Turn(1, "x"), Turn(1, "y"))), 2))
    rare = contexts(at(Trajectory("a", "p", "t", (Turn(1, "z"), Turn(1, "y"))), 2))
    never = contexts(at(Trajectory("a", "p", "t", (Turn(1, "w"), Turn(1, "y"))), 2))
    assert table.expect(common) == 0
    for _ in range(90):
        table.add(common, 10.0)
    for _ in range(10):
        table.add(rare, 20.0)
    assert table.expect(never) == pytest.approx(11.0)
    assert table.expect(rare) == pytest.approx((10 * 20 + 10 * 11) / 20)
    assert table.expect(common) == pytest.approx((90 * 10 + 10 * 11) / 100)


def test_the_surface_online_is_ridge_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without drift, whatever comes in pieces adds up to the regression over all of it, in any order."""
    monkeypatch.setattr(surface, "_DRIFT", 0.0)
    done = [
        (plain_features(history), tool_shares(history), float(left))
        for each in world(1, 20)
        for history, left in tool_returns(each)
    ]
    pieces, backwards = Surface(), Surface()
    waves = pieces.waves([row[0] for row in done], [row[1] for row in done])
    values = np.array([row[2] for row in done]) ** 0.5
    for first in range(0, len(values), 7):
        pieces.add(waves[:, first : first + 7], values[first : first + 7])
    backwards.add(waves[:, ::-1], values[::-1])
    expected = np.zeros(len(values))
    for rows in waves:
        penalty = np.diag([1.0] * (rows.shape[1] - 1) + [2.0**-8])
        expected += rows @ np.linalg.solve(rows.T @ rows + penalty, rows.T @ values) / len(waves)
    assert pieces.expect(waves) == pytest.approx(expected, rel=2e-4)
    assert backwards.expect(waves) == pytest.approx(expected, rel=2e-4)


def test_one_point_is_worth_the_same_alone_and_among_many() -> None:
    rng = np.random.default_rng(5)
    plain = list(rng.integers(0, 20 * UNIT, size=(40, PLAIN)).astype(float))
    tools: list[dict[str | None, int]] = [{"grep": SHARE * i // 40, "edit": SHARE - SHARE * i // 40} for i in range(40)]
    learner = Surface()
    learner.add(learner.waves(plain, tools), rng.normal(size=40) * 30)
    together = learner.expect(learner.waves(plain, tools))
    assert np.ptp(together) > 1.0
    assert [learner.value(point, shares) for point, shares in zip(plain, tools, strict=True)] == together.tolist()


def test_the_surface_follows_drift() -> None:
    """What was learnt long ago gives way: after a change it comes to the new values, not to a mean of both."""
    points = [(plain_features(history), tool_shares(history)) for history, _ in tool_returns(world(1, 1)[0])]
    learner = Surface()
    waves = learner.waves(*zip(*points, strict=True))
    for value in (10.0, 50.0):
        for _ in range(500):
            learner.add(waves, np.full(len(points), value))
    assert np.all(learner.expect(waves) > 40)


def test_taught_in_batches_it_expects_what_it_does_when_taught_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short trajectories, some of which always wait to be taught; long ones would make batches of their own."""
    learnt = [replace(each, turns=each.turns[:3]) for each in world(1, 400)]
    batches, at_once = SuffixBackoff(), SuffixBackoff()
    for each in learnt:
        batches.learn(each)
    monkeypatch.setattr(suffix, "_BATCH", 0)
    for each in learnt:
        at_once.learn(each)
    asked = [at(each, count) for each in world(2, 50) for count in (1, 2)]
    pairs = [(batches.observe(history), at_once.observe(history)) for history in asked]
    assert np.std([one.mean for _, one in pairs]) > 10
    for several, one in pairs:
        assert several.mean == pytest.approx(one.mean, rel=0.02)
        assert several.p90 == pytest.approx(one.p90, rel=0.02)
    early, first = SuffixBackoff(), SuffixBackoff()  # the first few count at once
    for each in learnt[:3]:
        first.learn(each)
    monkeypatch.undo()
    for each in learnt[:3]:
        early.learn(each)
    assert early.observe(asked[0]) == first.observe(asked[0])


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_spread_is_summed_up_as_knot_by_knot(count: int, seed: int) -> None:
    """All knots at once, to the bit."""
    rng = np.random.default_rng(seed)
    forecasts = np.rint(1024 * rng.normal(30, 10, count)) / 1024
    truths = np.rint(1024 * (forecasts + rng.normal(0, 5, count))) / 1024
    spread = Spread()
    spread.add(forecasts, truths)
    spread.fit()
    order = np.argsort(forecasts, kind="stable")
    errors = (truths - forecasts)[order]
    width = min(count, max(20, round(count / 4)))
    for at, first in enumerate(np.unique(np.linspace(0, count - width, 9).astype(int))):
        near = slice(first, first + width)
        assert spread._at[at] == forecasts[order][near].mean()
        assert spread._errors[at] == (float(np.mean(errors[near] ** 2)), float(np.quantile(errors[near], 0.9)))


def test_spread_is_calibrated_where_errors_grow() -> None:
    random = np.random.default_rng(5)
    forecasts = random.uniform(10, 100, 4000)
    truths = forecasts * random.normal(1.0, 0.2, 4000).clip(0)
    spread = Spread()
    spread.add(forecasts[:2000], truths[:2000])
    spread.fit()
    for low, high in ((10, 40), (40, 70), (70, 100)):
        chosen = [(f, t**2) for f, t in zip(forecasts[2000:], truths[2000:], strict=True) if low <= f < high]
        lefts = [spread.left(f) for f, _ in chosen]
        assert np.mean([t <= left.p90 for left, (_, t) in zip(lefts, chosen, strict=True)]) == pytest.approx(
            0.9, abs=0.04
        )
        assert np.mean([left.mean for left in lefts]) == pytest.approx(np.mean([t for _, t in chosen]), rel=0.06)


@pytest.mark.parametrize("make", LEARNERS)
def test_nothing_learnt_is_said_to_be_unknown(make: Callable[[], Estimator]) -> None:
    history = at(world(1, 1)[0], 1)
    assert make().observe(history) == UNKNOWN
    alone = make()
    alone.learn(Trajectory("a", "p", "t", (Turn(5),)))  # ended without a tool return
    assert alone.observe(history) == UNKNOWN


@pytest.mark.parametrize("make", LEARNERS)
def test_asking_changes_nothing_and_runs_repeat(make: Callable[[], Estimator]) -> None:
    often, once = make(), make()
    done = world(2, 30)
    for each in done:
        for history, _ in tool_returns(done[0]):
            often.observe(history)
        often.learn(each)
        once.learn(each)
    for history, _ in tool_returns(done[3]):
        assert often.observe(history) == once.observe(history)


@pytest.mark.parametrize("make", LEARNERS)
def test_no_estimator_sees_the_future_or_the_policy(make: Callable[[], Estimator]) -> None:
    """Another rest, another policy, another task: the same answer at the same tool return."""
    estimator = make()
    for each in world(3, 40):
        estimator.learn(each)
    asked = world(4, 1)[0]
    other = replace(asked, turns=(*asked.turns[:2], *asked.turns[:1:-1], Turn(9999)), policy="x", task="y", end="z")
    assert estimator.observe(at(asked, 2)) == estimator.observe(at(other, 2))
    history, _ = next(tool_returns(asked))
    assert history.turns == [asked.turns[0]]


def test_ours_learns_what_tells() -> None:
    ours, trie = SuffixBackoff(), PaperTrie()
    for each in world(5, 200):
        ours.learn(each)
        trie.learn(each)
    asked = [
        (ours.observe(history), trie.observe(history), left)
        for each in world(6, 40)
        for history, left in tool_returns(each)
    ]
    left = np.array([row[2] for row in asked], dtype=np.float64)
    mean = np.array([row[0].mean for row in asked])
    assert r2(mean, left) > 0.6
    assert r2(mean, left) > r2(np.array([row[1].mean for row in asked]), left)
    assert np.mean(left <= [row[0].p90 for row in asked]) == pytest.approx(0.9, abs=0.06)


def test_oracle_and_noise() -> None:
    every = world(7, 300)
    oracle = Oracle(every)
    assert oracle.observe(at(every[0], 2)) == Left(every[0].left()[1], every[0].left()[1])
    noisy = Noisy(oracle, 0.5, seed=1)
    ratios = np.array([noisy.observe(at(each, 1)).mean / each.left()[0] for each in every])
    assert np.log(ratios).std() == pytest.approx(0.5, abs=0.06)
    assert np.mean([each.left()[0] <= noisy.observe(at(each, 1)).p90 for each in every]) == pytest.approx(0.9, abs=0.05)
    assert noisy.observe(at(every[0], 2)).mean / every[0].left()[1] == pytest.approx(ratios[0], rel=0.01)
    assert Noisy(oracle, 0.0).observe(at(every[0], 2)) == oracle.observe(at(every[0], 2))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auc_counts_pairs(rows: list[tuple[int, bool]]) -> None:
    inside = [score for score, chosen in rows if chosen]
    outside = [score for score, chosen in rows if not chosen]
    if not inside or not outside:
        return
    pairs = [(a > b) + (a == b) / 2 for a in inside for b in outside]
    found = auc(np.array([row[0] for row in rows], dtype=np.float64), np.array([row[1] for row in rows]))
    assert found == pytest.approx(sum(pairs) / len(pairs))


def save(path: Path, every: list[Trajectory]) -> Path:
    rows = [
        {
            "id": each.id,
            "task": each.task,
            "turns": [
                {"generated": turn.generated, "tool": turn.tool, "outcome": turn.outcome, "returned": turn.returned}
                for turn in each.turns
            ],
        }
        for each in every
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["steelyard", "estimator-eval", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(save(tmp_path / "x.jsonl", world(8, 30)))
    assert run(monkeypatch, path, "--json") == 0
    first = capsys.readouterr().out
    assert run(monkeypatch, path, "--json") == 0
    assert capsys.readouterr().out == first
    found = json.loads(first)
    assert found["estimator"] == "suffix" and found["folds"] == 5 and found["trajectories"] == 30
    assert 0.5 < found["auc"] <= 1 and 0.7 < found["coverage_p90"] <= 1 and found["r2"] <= 1
    assert run(monkeypatch, path, "--json", "--estimator", "oracle") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["auc"], found["r2"], found["coverage_p90"]) == (1.0, 1.0, 1.0)
    assert run(monkeypatch, path) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in ("blind", "turn", "trie", "suffix", "noisy", "oracle"))


@pytest.mark.parametrize(
    ("count", "words", "says"),
    [
        (12, ["--folds", "9"], "--folds must be from 2 to the number of tasks, here 6 (found 9)"),
        (12, ["--folds", "1"], "--folds must be from 2"),
        (12, ["--estimator", "trei"], "did you mean 'trie'"),
        (0, [], "holds no trajectories"),
    ],
)
def test_a_mistake_is_one_message(
    count: int,
    words: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = str(save(tmp_path / "x.jsonl", world(8, count)))
    assert run(monkeypatch, path, "--json", *words) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_nothing_to_foretell(tmp_path: Path) -> None:
    same = [Trajectory(str(n), str(n), str(n), (Turn(1, "x"), Turn(5))) for n in range(6)]
    with pytest.raises(UserError, match="nothing to predict: 6 tool returns"):
        evaluate_file(save(tmp_path / "x.jsonl", same), ["turn"], 3)


@shared
def test_held_out_tasks_of_swe_agent() -> None:
    """What the estimator is for: the longest fifth told apart, and a p90 that means what it says."""
    found = evaluate_file(TRAJECTORIES / "swe-agent-java.jsonl.gz", ["turn", "trie", "suffix"], 5)
    turn, trie, ours = found.scores
    assert found.tool_returns == 3845
    assert ours.auc > 0.82 and 0.88 < ours.coverage_p90 < 0.93
    assert ours.auc > max(turn.auc, trie.auc) + 0.1 and ours.r2 > max(turn.r2, trie.r2) + 0.2


def test_tries_are_built_again_every_fifty_steps() -> None:
    """Then a prompt that was seen long ago has no trie of its own any more."""
    made = CoreSettings("sticky", "trie", 1, (), RoundSettings(60, groups=13, size=8))
    estimator = made.core().placement._estimator

    def of(prompt: str, left: int) -> Trajectory:
        return Trajectory("a", prompt, "task", (Turn(1, "search", "ok", 10, 1.0), Turn(left)), 10)

    seen = History("b", "old", 10)
    seen.add(Turn(1, "search", "ok", 10, 1.0))
    estimator.learn(of("old", 9_000))
    for number in range(50 * 13 * 8 - 2):
        estimator.learn(of(f"{number}", 10))
    assert estimator.observe(seen).mean == 9_000
    estimator.learn(of("last", 10))
    assert estimator.observe(seen).mean < 100
