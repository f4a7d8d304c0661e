"""Estimators side by side on the console."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from steelyard.validate.estimators import LONGEST, Evaluation


def print_estimators(found: Evaluation, console: Console) -> None:
    """A row for each, and what the columns mean."""
    table = Table(box=None, pad_edge=False)
    for heading in ("estimator", "AUC", "r2", "r2 of logs", "p90 covers", "learn", "observe"):
        table.add_column(heading, justify="left" if heading == "estimator" else "right")
    for each in found.scores:
        table.add_row(
            each.estimator,
            f"{each.auc:.3f}",
            f"{each.r2:.2f}",
            f"{each.r2_log:.2f}",
            f"{each.coverage_p90:.1%}",
            f"{each.learn_us:.0f} µs",
            f"{each.observe_us:.0f} µs",
        )
    console.print(table)
    console.print(
        f"\n{found.tool_returns:,} tool returns of {found.trajectories:,} trajectories on {found.tasks:,} tasks, "
        f"{found.folds} folds by task; AUC for the {LONGEST:.0%} with more than {found.longest_above:,.0f} tokens "
        "left; times are CPU for each tool return",
        soft_wrap=True,
        highlight=False,
    )
