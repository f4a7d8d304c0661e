"""Generates causal trajectories: a tool's result changes the remaining work, and later turns never change earlier ones.

The task's difficulty and the remaining work are hidden state. A turn generates tokens and calls a tool. A success
reduces the remaining work, sometimes by much. An error adds work, makes the next turn longer and the next call more
likely to fail. A timeout costs its time, and the call is repeated. All trajectories of a batch are generated together,
turn by turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.records import Floats, Ints
from steelyard.scenario.numbers import MOST
from steelyard.scenario.rollouts import Factors
from steelyard.workload.trajectories.batch import ENDS
from steelyard.workload.trajectories.chance import Levels, TurnDraws, Words, deal, levels, share
from steelyard.workload.trajectories.plan import TrajectoryTables
from steelyard.workload.trajectories.quantiles import normal

Flags = NDArray[np.bool_]

_GOING = -1  # in place of an index into ENDS: it has not ended
_DONE, _GAVE_UP, _TOKENS, _TURNS = range(len(ENDS))
_NO_WORK = 0.5  # remaining steps below which a trajectory makes its last turn; chosen
_ERROR = 1  # index into OUTCOMES; a timeout comes after it
_BEFORE = 1 << 32  # the place of draws for the trajectory as a whole, which no turn has


class Tasks(NamedTuple):
    """What the trajectories of a group share, one row per trajectory."""

    difficulty: Floats  # in standard deviations
    prompt_tokens: Ints


class TurnColumns(NamedTuple):
    """One turn of the trajectories that are still running."""

    who: Ints
    generated: Ints
    tool: Ints
    outcome: Ints
    returned: Ints
    latency: Floats


@dataclass(frozen=True)
class GeneratedTurns:
    """All turns, sorted by trajectory, and how each trajectory ended."""

    turns: TurnColumns
    ends: Ints


class _State(NamedTuple):
    """The trajectories that are still running."""

    who: Ints
    key: Words
    difficulty: Floats
    pace: Floats
    work: Floats  # steps at the start
    left: Floats  # remaining steps
    room: Ints  # remaining tokens of the budget
    failed: Flags
    retry: Ints  # the tool to call again, or -1
    quitting: Flags

    def only(self, chosen: Flags) -> _State:
        return _State(
            who=self.who[chosen],
            key=self.key[chosen],
            difficulty=self.difficulty[chosen],
            pace=self.pace[chosen],
            work=self.work[chosen],
            left=self.left[chosen],
            room=self.room[chosen],
            failed=self.failed[chosen],
            retry=self.retry[chosen],
            quitting=self.quitting[chosen],
        )


class _Return(NamedTuple):
    """What tools returned."""

    tool: Ints
    failed: Flags
    timeout: Flags
    latency: Floats
    returned: Ints


def tasks_of(plan: TrajectoryTables, key: Words) -> Tasks:
    """Difficulty and prompt of tasks, by their keys. A prompt leaves room for at least one token."""
    hard, prompt, *_ = levels(key, 0)
    most = plan.spec.budget.context - 1
    return Tasks(normal().take(hard), np.minimum(plan.prompt.take(prompt), most).astype(np.int64))


def generate(
    plan: TrajectoryTables, tasks: Tasks, key: Words, factors: Factors, dealer: Callable[[Words, int], TurnDraws] = deal
) -> GeneratedTurns:
    """Generate the trajectories with these keys."""
    state = _begin(plan, tasks, key, factors)
    ends = np.full(len(key), _GOING, dtype=np.int64)
    taken: list[TurnColumns] = []
    for turn in range(plan.spec.budget.turns):
        row, end, state = _take_turn(plan, state, dealer(state.key, turn), factors.success)
        ends[row.who] = end
        taken.append(row)
        going = end == _GOING
        if not going.any():
            break
        state = state.only(going)
    ends[ends == _GOING] = _TURNS
    every = [np.concatenate(column) for column in zip(*taken, strict=True)]
    order = np.argsort(every[0], kind="stable")
    return GeneratedTurns(TurnColumns(*(column[order] for column in every)), ends)


def _begin(plan: TrajectoryTables, tasks: Tasks, key: Words, factors: Factors) -> _State:
    spec = plan.spec
    own_work, own_pace, *_ = levels(key, _BEFORE)
    z = normal()
    pace = np.exp(spec.pace.by_task * tasks.difficulty + spec.pace.by_sample * z.take(own_pace))
    work = np.exp(spec.work.by_task * tasks.difficulty + spec.work.by_sample * z.take(own_work))
    work *= spec.work.median * factors.turns
    room = spec.budget.context - tasks.prompt_tokens
    if spec.budget.response is not None:
        room = np.minimum(room, spec.budget.response)
    count = len(key)
    return _State(
        who=np.arange(count),
        key=key,
        difficulty=tasks.difficulty,
        pace=pace * factors.tokens,
        work=work,
        left=work,
        room=room,
        failed=np.zeros(count, dtype=np.bool_),
        retry=np.full(count, -1),
        quitting=np.zeros(count, dtype=np.bool_),
    )


def _take_turn(
    plan: TrajectoryTables, state: _State, draws: TurnDraws, success: float
) -> tuple[TurnColumns, Ints, _State]:
    """One turn of each trajectory: the turn, how the trajectory ended (if it did), and its new state."""
    last = state.quitting | (state.left < _NO_WORK)
    wanted = _tokens(plan, state, draws, last)
    generated = np.minimum(wanted, state.room)
    cut = wanted > state.room
    calls = ~(last | cut)
    room = state.room - generated
    answer = _call(plan, state, draws, success)
    returned = np.where(calls, np.minimum(answer.returned, room), 0)
    room = room - returned
    row = TurnColumns(
        who=state.who,
        generated=generated,
        tool=np.where(calls, answer.tool, -1),
        outcome=np.where(calls, answer.failed * _ERROR + answer.timeout, 0),
        returned=returned,
        latency=np.where(calls, answer.latency, 0.0),
    )
    end = np.where(last, np.where(state.quitting, _GAVE_UP, _DONE), _GOING)
    end = np.where(cut | (calls & (room == 0)), _TOKENS, end)
    following = state._replace(
        room=room,
        left=_left_after(plan, state, answer, draws),
        failed=answer.failed,
        retry=np.where(answer.timeout, answer.tool, -1),
        quitting=answer.failed & (share(draws.quitting) < plan.spec.give_up),
    )
    return row, end, following


def _tokens(plan: TrajectoryTables, state: _State, draws: TurnDraws, last: Flags) -> Ints:
    """What a turn would generate without a budget."""
    thinking = plan.thinking.take(draws.thinking) * np.where(state.failed, plan.spec.after_error, 1.0)
    tokens = np.where(last, plan.answer.take(draws.thinking), thinking + plan.call.take(draws.call))
    return np.clip(np.rint(tokens * state.pace), 1, MOST).astype(np.int64)


def _call(plan: TrajectoryTables, state: _State, draws: TurnDraws, success: float) -> _Return:
    tools = plan.tools
    tool = np.where(state.retry < 0, _choice(plan, state, draws.tool), state.retry)
    against = np.exp(tools.harder.take(tool) * state.difficulty) / success
    against *= np.where(state.failed, plan.spec.streak, 1.0)
    error, late = tools.error.take(tool) * against, tools.timeout.take(tool) * against
    fate = share(draws.outcome) * (1 + error + late)
    failed, timeout = fate < late + error, fate < late
    limit = tools.limit.take(tool)
    seconds = tools.latency(tool, draws.latency) * np.exp(tools.slower.take(tool) * state.difficulty)
    returned = np.where(failed, tools.error_returned(tool, draws.returned), tools.returned(tool, draws.returned))
    return _Return(
        tool=tool,
        failed=failed,
        timeout=timeout,
        latency=np.where(timeout, limit, np.minimum(seconds, limit)),
        returned=returned.astype(np.int64),
    )


def _choice(plan: TrajectoryTables, state: _State, level: Levels) -> Ints:
    """Choose a tool by the shares at this point of the trajectory."""
    done = 1.0 - np.minimum(state.left / state.work, 1.0)
    drawn = share(level)
    tool = np.zeros(len(drawn), dtype=np.int64)
    for begin, end in zip(plan.tools.begin[:-1].tolist(), plan.tools.end[:-1].tolist(), strict=True):
        tool += drawn >= begin + done * (end - begin)
    return tool


def _left_after(plan: TrajectoryTables, state: _State, answer: _Return, draws: TurnDraws) -> Floats:
    """Remaining work after the tool's result."""
    tools = plan.tools
    change = np.where(answer.failed, tools.rework.take(answer.tool), -tools.advance.take(answer.tool))
    left = np.maximum(state.left + np.where(answer.timeout, 0.0, change), 0.0)
    chance = 2 * tools.insight.take(answer.tool) * share(draws.returned)
    insight = ~answer.failed & (share(draws.insight) < chance)
    return np.where(insight, left * plan.spec.shorten, left)
