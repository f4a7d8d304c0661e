"""Runs many cases, several at a time. It can be stopped and continued. Failing cases are made small and kept.

The cases of a campaign follow from its seed: case 17 of seed 3 is the same on every machine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

from tools.fuzz.case import Case
from tools.fuzz.cases import case as make_case
from tools.fuzz.nursery import Outcome, run, warm_up
from tools.fuzz.shrink import shrunk
from tools.fuzz.verdict import Failure, judge


@dataclass(frozen=True)
class Ran:
    """One case that has run."""

    number: int
    command: str
    label: str
    code: int
    seconds: float
    peak_bytes: int
    failure: str = ""  # its signature


def case_of(seed: int, number: int) -> Case:
    """A case of a campaign."""
    return make_case(Random(f"{seed}:{number}"))


def tried(case: Case) -> tuple[Outcome, Failure | None]:
    """Run a case and judge it."""
    outcome = run(case)
    return outcome, judge(case, outcome)


class Campaign:
    """Cases from 0 on, and a folder with what is known of them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self._done = folder / f"seed-{seed}.jsonl"
        self.failures = folder / "failures"
        self.failures.mkdir(parents=True, exist_ok=True)
        text = self._done.read_text() if self._done.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # the last line may be cut
        if whole != text:
            self._done.write_text(whole)
        self.ran = [Ran(**json.loads(line)) for line in whole.splitlines()]

    def run(self, cases: int, workers: int) -> Iterator[Ran]:
        """Every case that has not been run yet."""
        known = {each.number for each in self.ran}
        todo = [number for number in range(cases) if number not in known]
        context = get_context("forkserver")
        with (
            ProcessPoolExecutor(workers, context, initializer=warm_up) as pool,
            self._done.open("a", encoding="utf-8") as file,
        ):
            runs = pool.map(_run_one, [self.seed] * len(todo), todo, [str(self.failures)] * len(todo), chunksize=4)
            for each in runs:
                file.write(json.dumps(each.__dict__) + "\n")
                file.flush()
                self.ran.append(each)
                yield each


def _run_one(seed: int, number: int, failures: str) -> Ran:
    """Run a case in a worker. A failure of a new kind is made small and kept."""
    case = case_of(seed, number)
    outcome, failure = tried(case)
    if failure is not None:
        keep(case, failure, Path(failures), f"seed {seed}, case {number}")
    signature = "" if failure is None else failure.signature
    return Ran(number, case.name[:20], case.label, outcome.code, outcome.seconds, outcome.peak_bytes, signature)


def keep(case: Case, failure: Failure, folder: Path, origin: str) -> None:
    """Write a failing case, unless one of its kind is there."""
    path = folder / f"{failure.signature}.json"
    if path.exists():
        return

    def fails(smaller: Case) -> bool:
        found = tried(smaller)[1]
        return found is not None and found.signature == failure.signature

    small = case if failure.kind == "hang" else shrunk(case, fails)
    path.write_text(replace(small, why=f"{failure.kind} ({origin}): {failure.place}: {failure.words}").to_text())


def table(ran: Sequence[Ran]) -> str:
    """By command and format: cases, how they ended, the longest and the largest, failures."""
    rows: list[tuple[str, ...]] = [
        ("command", "format", "cases", "accepted", "refused", "failed", "longest s", "largest MiB")
    ]
    for command, label in sorted({(each.command, each.label) for each in ran}):
        own = [each for each in ran if (each.command, each.label) == (command, label)]
        codes = Counter(each.code for each in own)
        rows.append(
            (
                repr(command)[1:-1],
                label,
                str(len(own)),
                str(codes[0] + codes[1]),
                str(codes[2]),
                str(sum(bool(each.failure) for each in own)),
                f"{max(each.seconds for each in own):.1f}",
                str(max(each.peak_bytes for each in own) >> 20),
            )
        )
    total = [str(sum(int(row[column]) for row in rows[1:])) for column in range(2, 6)]
    rows.append(("all", "", *total, "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
