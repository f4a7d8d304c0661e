"""Generated trajectories: causes before effects, draws that do not move each other, budgets, groups and drift."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.estimate import SuffixBackoff
from steelyard.balance.estimate.history import tool_returns
from steelyard.errors import UserError
from steelyard.records import Trajectory, Turn
from steelyard.scenario.distributions import EmpiricalTokens, ExponentialSeconds, Lognormal, UniformTokens, ZipfTokens
from steelyard.scenario.rollouts import Factors, LearningSpec, TrajectorySpec, preset_names, trajectories_spec
from steelyard.validate.estimators import auc
from steelyard.workload.trajectories import (
    Learning,
    TrajectoryBatch,
    read_trajectories,
    trajectories_of,
    write_trajectories,
)
from steelyard.workload.trajectories.chance import LEVELS, TurnDraws, Words, deal, keys, levels
from steelyard.workload.trajectories.generate import GeneratedTurns, generate, tasks_of
from steelyard.workload.trajectories.plan import compile_plan
from steelyard.workload.trajectories.quantiles import seconds_table, tokens_table
from steelyard.workload.trajectories.tasks import GeneratedTasks
from tools.trajectory_lengths import main

Dealer = Callable[[Words, int], TurnDraws]

PLAIN: dict[str, Any] = {
    "prompts": 8,
    "group": 4,
    "tasks": 40,
    "prompt": {"kind": "uniform", "min": 50, "max": 90},
    "thinking": {"kind": "lognormal", "median": 100, "sigma": 0.5},
    "call": 20,
    "answer": 60,
    "work": {"median": 5, "by_task": 0.3, "by_sample": 0.3},
    "pace": {"by_task": 0.1, "by_sample": 0.3},
    "give_up": 0.02,
    "streak": 1.5,
    "budget": {"turns": 200, "context": 1_000_000},
    "tools": [
        {
            "name": "find",
            "share": [1, 0],
            "latency": {"kind": "exponential", "mean": 1},
            "limit": 9,
            "returned": {"kind": "uniform", "min": 10, "max": 1000},
            "timeout": 0.05,
            "insight": 0.3,
        },
        {"name": "edit", "share": [0, 1], "latency": 0.5, "returned": 40, "error": 0.3, "rework": 1.5, "harder": 1.5},
    ],
}


def spec_of(**changed: Any) -> TrajectorySpec:
    made = trajectories_spec({**PLAIN, **changed})
    assert isinstance(made, TrajectorySpec)
    return made


def one_tool(**changed: Any) -> dict[str, Any]:
    return {"tools": [{"name": "run", "latency": 1, "returned": 10, **changed}]}


def source(seed: int = 1, **changed: Any) -> GeneratedTasks:
    return GeneratedTasks(spec_of(**changed), seed)


def by_name(batch: TrajectoryBatch) -> dict[str, Trajectory]:
    return {each.id: each for each in batch}


def run(spec: TrajectorySpec, count: int, dealer: Dealer = deal, factors: Factors | None = None) -> GeneratedTurns:
    plan = compile_plan(spec, Path())
    task = keys(1, np.arange(count, dtype=np.uint64))
    return generate(plan, tasks_of(plan, task), keys(task, 2), factors or Factors(), dealer)


def histories(made: GeneratedTurns) -> list[list[tuple[float, ...]]]:
    """Each trajectory's turns as plain tuples."""
    found: list[list[tuple[float, ...]]] = [[] for _ in made.ends]
    for who, *rest in zip(*(column.tolist() for column in made.turns), strict=True):
        found[who].append(tuple(rest))
    return found


def forced(at: int, level: int) -> Dealer:
    """Chance, but for the outcome of one turn."""

    def dealer(key: Words, turn: int) -> TurnDraws:
        draws = deal(key, turn)
        return draws._replace(outcome=np.full_like(draws.outcome, level)) if turn == at else draws

    return dealer


# chance


def test_levels_are_even_and_independent() -> None:
    names = keys(7, np.arange(4096, dtype=np.uint64))
    columns = np.array([each for place in (0, 1, 2, 1 << 32) for each in levels(names, place)]) / LEVELS
    assert columns.mean(axis=1) == pytest.approx(0.5, abs=0.02)
    assert columns.var(axis=1) == pytest.approx(1 / 12, abs=0.005)
    linked = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(linked).max() < 0.07  # 4.5 standard errors
    assert np.abs(np.corrcoef(columns[:, :-1], columns[:, 1:])[:16, 16:]).max() < 0.07  # neighbours


def test_every_part_of_a_key_counts() -> None:
    every = np.arange(100, dtype=np.uint64)
    made = [keys(seed, kind, every, step) for seed in (0, 1) for kind in (1, 2) for step in (0, 1, 2)]
    assert len({int(key) for column in made for key in column}) == 1200
    assert keys(1, 2) != keys(2, 1)


@pytest.mark.parametrize(
    ("table", "mean", "median"),
    [
        (tokens_table(UniformTokens(kind="uniform", min=3, max=9), Path()), 6, 6),
        (tokens_table(Lognormal(kind="lognormal", median=100, sigma=0.5), Path()), 100 * np.exp(0.125), 100),
        (tokens_table(ZipfTokens(kind="zipf", min=1, max=4), Path()), 48 / 25, 2),
        (tokens_table(EmpiricalTokens(kind="empirical", values=(5, 5, 5, 1)), Path()), 4, 5),
        (seconds_table(ExponentialSeconds(kind="exponential", mean=2)), 2, 2 * np.log(2)),
    ],
)
def test_tables_have_the_distribution(table: Any, mean: float, median: float) -> None:
    assert len(table) == LEVELS and (np.diff(table) >= 0).all()
    assert table.mean() == pytest.approx(mean, rel=0.01)
    assert np.median(table) == pytest.approx(median, rel=0.001)


# determinism


def test_asking_again_gives_the_same() -> None:
    assert list(source().step(3)) == list(source().step(3))
    ours = source()
    ours.step(9)
    assert list(ours.step(3)) == list(source().step(3))
    assert list(source(seed=2).step(3)) != list(source().step(3))
    first, second = ({(each.task, each.turns) for each in source(tasks=8).step(step)} for step in (0, 1))
    assert len(first) == len(second) == 32 and not first & second  # the same tasks, other samples


def test_a_trajectory_does_not_depend_on_who_else_is_there() -> None:
    small = by_name(source(group=2, prompts=4).step(0))
    large = by_name(source(group=8, prompts=16).step(0))
    assert len(small) == 8 and len(large) == 128
    assert all(large[name] == each for name, each in small.items())


def test_an_epoch_has_every_task_once() -> None:
    ours = source(tasks=43)
    prompts = [prompt for step in range(5) for prompt in dict.fromkeys(each.prompt for each in ours.step(step))]
    assert len(set(prompts)) == 40
    again = list(dict.fromkeys(each.prompt for each in ours.step(5)))
    assert len(again) == 8 and again != prompts[:8]


def test_groups_share_prompt_and_difficulty() -> None:
    batch = source(group=16, pace={}, work={"median": 20, "by_task": 1.0}).step(0)
    for begin in range(0, len(batch), 16):
        group = batch[begin : begin + 16]
        assert len({(each.prompt, each.task, each.prompt_tokens) for each in group}) == 1
        assert len({each.turns for each in group}) == 16
    turns = np.log(batch.turns.reshape(8, 16))
    assert turns.mean(axis=1).var() > turns.var(axis=1).mean()  # tasks lie further apart than samples


def test_a_batch_reads_as_records_and_as_columns() -> None:
    batch = source().step(0)
    every = list(batch)
    assert [batch[i] for i in range(len(batch))] == every and batch[-1] == every[-1] and batch[3:9:2] == every[3:9:2]
    assert len({each.id for each in every}) == len(every)
    assert batch.turns.tolist() == [len(each.turns) for each in every]
    assert batch.totals(batch.generated).tolist() == [each.generated for each in every]
    for each in every:
        assert all(turn.tool is not None and turn.latency is not None for turn in each.turns[:-1])
        assert (each.turns[-1].tool is None) == (each.end in ("done", "gave-up"))
    with pytest.raises(IndexError):
        batch[len(batch)]


def test_written_and_read_back(tmp_path: Path) -> None:
    batch = source().step(0)
    write_trajectories(tmp_path / "x.jsonl", batch)
    assert read_trajectories(tmp_path / "x.jsonl") == list(batch)


# causes


@pytest.mark.parametrize("at", [0, 2])
def test_an_error_adds_work(at: int) -> None:
    """The same trajectories but for one outcome: the same before it, more to do after."""
    spec = spec_of(**one_tool(error=0.3, rework=2.0))
    failing, working = (histories(run(spec, 1500, forced(at, level))) for level in (0, LEVELS - 1))
    left = []
    for bad, good in zip(failing, working, strict=True):
        assert bad[:at] == good[:at]
        if len(bad) > at and bad[at][1] >= 0:  # a tool was called
            assert bad[at][:2] == good[at][:2] and (bad[at][2], good[at][2]) == (1, 0)
            left.append([sum(turn[0] for turn in each[at + 1 :]) for each in (bad, good)])
    assert len(left) > 1000
    after_error, after_success = np.mean(left, axis=0)
    assert after_error > 1.3 * after_success


def test_a_timeout_costs_its_limit_and_a_retry() -> None:
    tools = [{**PLAIN["tools"][0], "timeout": 0.2}, {**PLAIN["tools"][1], "timeout": 0.2, "limit": 30}]
    retried = 0
    for turns in histories(run(spec_of(tools=tools, give_up=0.0), 500)):
        for before, after in pairwise(turns):
            if before[2] == 2:
                assert before[4] == (9, 30)[int(before[1])]
                assert after[1] == before[1]
                retried += 1
    assert retried > 300


def test_a_good_find_shortens_the_rest_and_longer_results_are_better() -> None:
    spec = spec_of(
        **one_tool(returned={"kind": "uniform", "min": 1, "max": 1000}, insight=0.4), shorten=0.1, work={"median": 8}
    )
    turns = histories(run(spec, 3000))
    returned = np.array([each[0][3] for each in turns])
    later = np.array([len(each) for each in turns])
    assert later[returned > 700].mean() < later[returned < 300].mean() - 0.5


def test_what_comes_later_leaves_the_past_alone() -> None:
    def other(at: int) -> Dealer:
        return lambda key, turn: deal(key if turn < at else keys(key, 99), turn)

    spec = spec_of()
    plain = histories(run(spec, 400))
    for at in (1, 3, 6):
        changed = histories(run(spec, 400, other(at)))
        assert all(one[:at] == two[:at] for one, two in zip(plain, changed, strict=True))
        assert sum(one != two for one, two in zip(plain, changed, strict=True)) > 100


def test_failures_follow_failures_and_difficulty() -> None:
    spec = spec_of(**one_tool(error=0.2, harder=3.0), work={"median": 10}, streak=4.0, give_up=0.0)
    plan = compile_plan(spec, Path())
    task = keys(1, np.arange(2000, dtype=np.uint64))
    hard = tasks_of(plan, task).difficulty > 0
    turns = histories(run(spec, 2000))
    errors = np.array([np.mean([turn[2] == 1 for turn in each if turn[1] >= 0] or [False]) for each in turns])
    assert errors[hard].mean() > 2 * errors[~hard].mean()
    pairs = [(one[2], two[2]) for each in turns for one, two in pairwise(each) if two[1] >= 0]
    after = {last: np.mean([now == 1 for before, now in pairs if before == last]) for last in (0, 1)}
    assert after[1] > 1.5 * after[0]


@pytest.mark.parametrize(("name", "prompts", "group"), [("search", 200, 4), ("swe", 80, 4), ("math", 200, 4)])
def test_returns_tell_what_is_left_and_not_too_much(name: str, prompts: int, group: int) -> None:
    """As in recorded trajectories: an estimator tells the longest fifth on unseen tasks, far from perfectly."""
    every = list(trajectories_of(trajectories_spec({"preset": name, "prompts": prompts, "group": group}), 1).step(0))
    seen = len(every) // 2
    estimator = SuffixBackoff()
    for index in np.random.default_rng(0).permutation(seen):
        estimator.learn(every[index])
    asked = [(estimator.observe(history).mean, left) for each in every[seen:] for history, left in tool_returns(each)]
    forecast, left = np.array(asked, dtype=np.float64).T
    assert 0.68 < auc(forecast, left > np.quantile(left, 0.8)) < 0.9


# budgets


@settings(max_examples=40)
@given(
    st.integers(1, 30), st.integers(2, 3000), st.none() | st.integers(1, 2000), st.floats(0.5, 40), st.integers(0, 9)
)
def test_budgets_hold(turns: int, context: int, response: int | None, work: float, seed: int) -> None:
    budget = {"turns": turns, "context": context, "response": response}
    batch = source(seed, budget=budget, work={"median": work, "by_sample": 0.8}).step(0)
    total = batch.totals(batch.generated + batch.returned)
    assert (batch.turns <= turns).all() and (batch.turns >= 1).all()
    assert (batch.generated >= 1).all() and (batch.returned >= 0).all() and (batch.latency >= 0).all()
    most = np.minimum(context - batch.prompt_tokens, context if response is None else response)
    assert (total <= most).all()
    for each, used, limit in zip(batch, total, most, strict=True):
        if each.end == "tokens":
            assert used == limit
        if each.end == "turns":
            assert len(each.turns) == turns and each.turns[-1].tool is not None


def test_no_work_needs_no_tool() -> None:
    batch = source(work={"median": 0.2}).step(0)
    assert all(len(each.turns) == 1 and each.turns[0].tool is None and each.end == "done" for each in batch)


# drift


def test_more_tokens_a_turn_change_nothing_else() -> None:
    spec = spec_of()
    plain, longer = run(spec, 500), run(spec, 500, factors=Factors(tokens=2.0))
    assert longer.turns.generated == pytest.approx(2 * plain.turns.generated, abs=1.01)
    assert all(np.array_equal(*columns) for columns in list(zip(plain.turns, longer.turns, strict=True))[2:])


def test_turns_and_success_move_as_stated() -> None:
    spec = spec_of(**one_tool(error=0.4), work={"median": 20}, streak=1.0, give_up=0.0)
    count = {
        turns: np.bincount(run(spec, 300, factors=Factors(turns=turns)).turns.who).mean() for turns in (0.5, 1.0, 2.0)
    }
    assert count[2.0] / count[1.0] == pytest.approx(2, rel=0.06)
    assert count[0.5] / count[1.0] == pytest.approx(0.5, rel=0.06)
    calls = run(spec, 500, factors=Factors(success=3.0)).turns
    failed = calls.outcome[calls.tool >= 0].mean()
    assert failed / (1 - failed) == pytest.approx((0.4 / 0.6) / 3, rel=0.08)


def test_drift_by_schedule() -> None:
    points = [{"step": 10, "tokens": 1.0}, {"step": 20, "tokens": 3.0, "turns": 0.5}]
    ours = source(drift={"kind": "schedule", "points": points})
    assert [ours.factors(step).tokens for step in (0, 10, 15, 20, 99)] == [1, 1, 2, 3, 3]
    assert ours.factors(15) == Factors(tokens=2.0, turns=0.75)
    assert ours.step(30).generated.mean() > 2 * ours.step(0).generated.mean()


def test_drift_by_learning() -> None:
    drift = {"kind": "learning", "tokens": 2.0, "success": 0.5}
    ours = source(drift=drift, learning={"samples": 320, "stale_half": 2})
    assert ours.factors(0) == Factors()
    assert ours.factors(10).tokens == pytest.approx(2 - np.exp(-1))
    last = ours.factors(10**6)
    assert (last.tokens, last.turns, last.success) == pytest.approx((2.0, 1.0, 0.5))


def test_stale_samples_teach_less() -> None:
    learning = Learning(LearningSpec(samples=100, start=0.2, best=0.8, stale_half=4))
    assert learning.effective([0, 0, 4, 8]) == pytest.approx(2.75)
    assert Learning(LearningSpec(samples=100)).effective([0, 50]) == 2
    assert learning.reward(0) == pytest.approx(0.2)
    assert learning.reward(100) == pytest.approx(0.8 - 0.6 * np.exp(-1))
    assert learning.samples_for(learning.reward(70)) == pytest.approx(70)
    assert (learning.samples_for(0.1), learning.samples_for(0.8)) == (0, np.inf)


# files


def test_prompts_of_a_file_are_drawn_again(tmp_path: Path) -> None:
    turns = (Turn(5, "x", returned=3), Turn(7))
    every = [Trajectory(f"{p}{n}", p, "t", (Turn(n + 1, "x"), *turns)) for p in "abc" for n in range(3)]
    write_trajectories(tmp_path / "x.jsonl", every)
    spec = trajectories_spec({"file": "x.jsonl", "prompts": 20, "group": 5})
    made = trajectories_of(spec, 1, tmp_path).step(4)
    assert made == trajectories_of(spec, 1, tmp_path).step(4)
    assert made != trajectories_of(spec, 1, tmp_path).step(5) and made != trajectories_of(spec, 2, tmp_path).step(4)
    assert len(made) == 100 and len({each.id for each in made}) == 100
    for begin in range(0, 100, 5):
        group = made[begin : begin + 5]
        assert len({each.prompt for each in group}) == 1
        assert {each.turns[0].generated for each in group[:3]} == {1, 2, 3}
    assert {each.prompt for each in made} == set("abc")


# presets and specs


@pytest.mark.parametrize("name", preset_names())
def test_presets(name: str) -> None:
    spec = trajectories_spec(name)
    assert isinstance(spec, TrajectorySpec)
    batch = GeneratedTasks(spec, 1).step(0)
    assert len(batch) == spec.prompts * spec.group == (512 if name == "swe" else 2048)
    ended = np.bincount(batch.ends, minlength=4) / len(batch)
    assert ended[0] > 0.6 and ended[2] < 0.3
    low, high = {"search": (2, 5), "swe": (10, 50), "math": (1, 5)}[name]
    inside = (batch.turns >= low) & (batch.turns <= high)
    assert inside.mean() > 0.88


def changed(**other: Any) -> dict[str, Any]:
    return {**PLAIN, **other}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("swee", "not a preset; did you mean 'swe'?"),
        ({"preset": "swe", "file": "x"}, "preset: give a file or a preset, not both"),
        ({"file": "x", "grop": 3}, "grop: unknown key; did you mean 'group'"),
        ({"preset": "swe", "tasks": 3}, "tasks: a training step takes 64 different prompts"),
        ({"preset": "search", "learning": None}, "learning: missing; drift by learning needs it"),
        (changed(budget={"turns": 0, "context": 9}), "budget.turns: must be at least 1 (found 0)"),
        (changed(work={"median": 0}), "work.median: must be at least 1e-06 (found 0)"),
        (changed(**one_tool(error=0.7, timeout=0.4)), "tools[0].error: error and timeout come to 1.1"),
        (changed(**one_tool(advance=0)), "tools: no tool advances the work"),
        (changed(**one_tool(share=[1, 0])), "tools: no tool has a share at the end"),
        (changed(**one_tool(insight=0.6)), "tools[0].insight: must be at most 0.5"),
        (changed(tools=[PLAIN["tools"][0]] * 2), "tools[0].name: two tools have this name (found 'find')"),
        (changed(drift={"kind": "lerning"}), "drift.kind: not a choice; did you mean 'learning'?"),
        (
            changed(drift={"kind": "schedule", "points": [{"step": 3}, {"step": 3}]}),
            "drift.points[1].step: not after the step before it, 3",
        ),
        (changed(learning={"samples": 9, "start": 1.0}), "learning.best: the same as start"),
    ],
)
def test_nonsense_is_refused(data: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        trajectories_spec(data, "x.yaml")
    assert f"x.yaml: {says}" in str(caught.value)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["search", "--prompts", "10", "--group", "2", "--save", str(tmp_path / "new")])
    printed = capsys.readouterr().out
    assert "| search | p50 | p90 | p99 |" in printed and "20 trajectories; calls: ok" in printed
    main([str(tmp_path / "new" / "search.jsonl")])
    assert capsys.readouterr().out.replace("search.jsonl", "search") == printed
    with pytest.raises(UserError, match="neither a file nor a preset; did you mean 'math'"):
        main(["maths"])


def test_a_step_is_made_fast() -> None:
    """2,048 trajectories of some 25 turns in about the time that Python counts to a million."""
    ours = trajectories_of(trajectories_spec("swe"), 1)
    ours.step(0)
    times = []
    for step in range(1, 4):
        began = time.process_time()
        ours.step(step)
        made = time.process_time()
        count = 0
        for each in range(1_000_000):
            count += each
        times.append((made - began) / (time.process_time() - made))
    assert min(times) < 1.5
