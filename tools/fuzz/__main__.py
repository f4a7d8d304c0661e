"""``python -m tools.fuzz``: a campaign of fuzz cases, or a kept case again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

# Before numpy is imported: one thread per case, and no cache outside of a case's folder.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["STEELYARD_CACHE"] = ""

from tools.fuzz.campaign import Campaign, case_of, table, tried
from tools.fuzz.case import Case
from tools.fuzz.nursery import warm_up

_EVERY = 10.0  # seconds between two lines of progress


def main() -> int:
    """Exit code 1 if a case failed."""
    asked = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    asked.add_argument("--cases", type=int, default=20_000, help="how many (default 20000)")
    asked.add_argument("--seed", type=int, default=0, help="another seed, other cases (default 0)")
    asked.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="cases at a time (default: all cores)")
    asked.add_argument(
        "--out", type=Path, default=Path("runs/fuzz"), help="folder of what was found; a campaign there goes on"
    )
    asked.add_argument("--only", type=int, help="run one case of the seed, and show it")
    asked.add_argument("--again", type=Path, nargs="+", help="run kept cases again, and show them")
    given = asked.parse_args()
    if given.again or given.only is not None:
        kept = [Case.from_text(path.read_text()) for path in given.again or ()]
        return _show(kept or [case_of(given.seed, given.only)])
    return _run(Campaign(given.seed, given.out), given.cases, given.workers)


def _show(cases: list[Case]) -> int:
    warm_up()
    failed = 0
    for case in cases:
        outcome, failure = tried(case)
        failed += failure is not None
        print(f"steelyard {' '.join(map(repr, case.command))}"[:2000])
        for name, content in case.files.items():
            print(f"  {name}: {content.kind}, {len(content.data)} bytes: {content.data[:2000]!r}")
        print(f"exit code {outcome.code}, {outcome.seconds:.2f} s, {outcome.peak_bytes >> 20} MiB, left {outcome.left}")
        print(outcome.stderr[-3000:])
        print("fine" if failure is None else f"FAILED: {failure}")
    return int(failed > 0)


def _run(campaign: Campaign, cases: int, workers: int) -> int:
    told = time.monotonic()
    for _ in campaign.run(cases, workers):
        if time.monotonic() - told > _EVERY:
            told = time.monotonic()
            failed = sum(bool(each.failure) for each in campaign.ran)
            print(f"{len(campaign.ran):,} of {cases:,} cases, {failed} failed", file=sys.stderr, flush=True)
    ran = [each for each in campaign.ran if each.number < cases]
    print(table(ran))
    failures = Counter(each.failure for each in ran if each.failure)
    for signature, count in failures.most_common():
        print(f"{count:6} {campaign.failures / signature}.json")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
