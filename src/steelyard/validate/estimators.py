"""How well an estimator predicts the remaining tokens, on tasks it has not seen.

Tasks are divided into folds. For each fold, an estimator learns the trajectories of all others, in a fixed shuffled
order, and then predicts at every tool return of this one. Predictions of all folds are scored together. An estimator
only sees histories, neither the policy's name nor the task's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard.balance.estimate import ESTIMATORS, Oracle
from steelyard.balance.estimate.history import tool_returns
from steelyard.errors import UserError, did_you_mean
from steelyard.records import Trajectory
from steelyard.workload.trajectories import read_trajectories

Array = npt.NDArray[np.float64]

LONGEST = 0.2  # share of tool returns with most tokens left, which AUC separates from the rest; chosen
DEFAULT = "suffix"


@dataclass(frozen=True, slots=True)
class Score:
    """One estimator's predictions against the truth, over all tool returns."""

    estimator: str
    auc: float  # probability that one of the longest fifth is predicted longer than one of the others
    r2: float  # of mean on tokens left
    r2_log: float  # the same on log(1 + tokens)
    coverage_p90: float  # share of tool returns with no more left than p90
    learn_us: float  # CPU time for each tool return, in microseconds; not part of what is printed as JSON
    observe_us: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores, and the data they were computed on."""

    file: str
    folds: int
    tasks: int
    trajectories: int
    tool_returns: int
    longest_above: float  # tokens left
    scores: list[Score]

    def as_dict(self, name: str) -> dict[str, Any]:
        """One estimator's figures, the same on every run."""
        score = next(each for each in self.scores if each.estimator == name)
        return {
            "estimator": name,
            "auc": score.auc,
            "r2": score.r2,
            "r2_log": score.r2_log,
            "coverage_p90": score.coverage_p90,
            "folds": self.folds,
            "tasks": self.tasks,
            "trajectories": self.trajectories,
            "tool_returns": self.tool_returns,
            "longest_above": self.longest_above,
        }


def evaluate_file(path: Path, names: list[str], folds: int) -> Evaluation:
    """Score the named estimators on a trajectory file."""
    for name in names:
        if name not in ESTIMATORS:
            raise UserError(f"--estimator {name!r} is not known; {did_you_mean(name, ESTIMATORS)}")
    every = read_trajectories(path)
    tasks = sorted({each.task for each in every})
    if not 2 <= folds <= len(tasks):
        raise UserError(f"{path}: --folds must be from 2 to the number of tasks, here {len(tasks)} (found {folds})")
    fold_of = {task: number % folds for number, task in enumerate(tasks)}
    parts = [[each for each in every if fold_of[each.task] == fold] for fold in range(folds)]
    left = np.array([each for part in parts for one in part for _, each in tool_returns(one)], dtype=np.float64)
    if len(np.unique(left)) < 2:
        raise UserError(
            f"{path}: nothing to predict: {len(left)} tool returns, and not two that had different tokens left"
        )
    longest_above = float(np.quantile(left, 1 - LONGEST))
    if left.max() <= longest_above:
        raise UserError(f"{path}: nothing to rank: the longest {LONGEST:.0%} of tool returns had the same tokens left")
    return Evaluation(
        file=str(path),
        folds=folds,
        tasks=len(tasks),
        trajectories=len(every),
        tool_returns=len(left),
        longest_above=longest_above,
        scores=[_score(name, parts, left) for name in names],
    )


def _score(name: str, parts: list[list[Trajectory]], left: Array) -> Score:
    means: list[float] = []
    highs: list[float] = []
    learning = asking = 0.0
    for fold, held_out in enumerate(parts):
        others = [each for number, part in enumerate(parts) if number != fold for each in part]
        estimator = ESTIMATORS[name](Oracle([*others, *held_out]))
        began = process_time()
        for index in np.random.default_rng(fold).permutation(len(others)):
            estimator.learn(others[index])
        learnt = process_time()
        for each in held_out:
            for history, _ in tool_returns(each):
                forecast = estimator.observe(history)
                means.append(forecast.mean)
                highs.append(forecast.p90)
        learning += learnt - began
        asking += process_time() - learnt
    mean, high = np.array(means), np.array(highs)
    return Score(
        estimator=name,
        auc=auc(mean, left > np.quantile(left, 1 - LONGEST)),
        r2=r2(mean, left),
        r2_log=r2(np.log1p(mean), np.log1p(left)),
        coverage_p90=float(np.mean(left <= high)),
        learn_us=learning / (len(left) * (len(parts) - 1)) * 1e6,
        observe_us=asking / len(left) * 1e6,
    )


def auc(scores: Array, chosen: npt.NDArray[np.bool_]) -> float:
    """The probability that a chosen item scores above one that is not; ties count half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    inside = int(chosen.sum())
    return float((rank[chosen].sum() - inside * (inside + 1) / 2) / (inside * (len(scores) - inside)))


def r2(forecast: Array, truth: Array) -> float:
    """The share of the truth's variance that is explained; below 0, the mean would predict better."""
    return float(1 - np.sum((truth - forecast) ** 2) / np.sum((truth - truth.mean()) ** 2))
