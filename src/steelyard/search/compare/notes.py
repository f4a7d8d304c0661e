"""What a reader must know to read a comparison rightly, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from steelyard.search.compare.figures import BY_NAME
from steelyard.search.compare.given import Given
from steelyard.search.compare.judging import Pairing
from steelyard.search.compare.runs import SeedRun, run_of

_ROUNDING = 1e-9
_NAMED = 3  # figures that are named where several differ


def column_notes(given: Given, runs: Sequence[SeedRun], again: SeedRun | None) -> Iterator[str]:
    """Notes on one column."""
    if given.kept is not None and given.scenario is None:
        yield (
            f"{given.name}: its one run is used as it is, since it cannot be simulated again ({given.why}); whether a "
            "difference is real cannot be said from one run: give its scenario"
        )
    if given.kept is not None and again is not None:
        yield f"{given.name}: simulated again from its scenario.json, with the seeds of all; {_agreement(given, again)}"
    unsteady = [run for run in runs if run.unsteady]
    if unsteady:
        yield (
            f"{given.name}: not steady in {len(unsteady)} of {len(runs)} runs ({unsteady[0].unsteady}): its figures "
            "depend on the length of the run"
        )
    for note in dict.fromkeys(note for run in runs for note in run.notes):
        yield f"{given.name}: {note}"


def _agreement(given: Given, again: SeedRun) -> str:
    """Whether the folder's own run and the same run by this version have the same figures."""
    assert given.kept is not None
    kept = run_of(given.kept)
    pairs = {name: (value, again.values[name]) for name, value in kept.values.items()}
    moved = [
        f"{BY_NAME[name].label} {one:.4g}, now {two:.4g}" for name, (one, two) in pairs.items() if _moved(one, two)
    ]
    if not moved:
        return "its own run has the same figures"
    more = f" and {len(moved) - _NAMED} more" if len(moved) > _NAMED else ""
    return (
        f"its own run, by Steelyard {kept.version}, has other figures than this version ({again.version}) gives: "
        f"{'; '.join(moved[:_NAMED])}{more}. The comparison shows those of this version"
    )


def _moved(one: float | None, other: float | None) -> bool:
    """Whether a figure that both runs have is another one."""
    return one is not None and other is not None and abs(one - other) > _ROUNDING * max(abs(one), abs(other))


def difference_notes(
    base_name: str, base: Sequence[SeedRun], name: str, here: Sequence[SeedRun], pairing: Pairing
) -> Iterator[str]:
    """Notes on one column against the base."""
    if pairing == "unpaired":
        yield (
            f"{name} and {base_name} are not asked the same requests: differences are unpaired (Welch), and hold what "
            "the requests do as well as what the fleets do"
        )
    if pairing == "single" and not _same_requests(base, here):
        yield f"{name} and {base_name} are not asked the same requests"
    if {n: v.limit for n, v in base[0].limits.items()} != {n: v.limit for n, v in here[0].limits.items()}:
        yield f"{name} and {base_name} have other SLOs: each is judged by its own, so their goodput cannot be compared"
    lost = [sum(run.values["unserved"] or 0 for run in runs) for runs in (base, here)]
    if lost[0] != lost[1]:
        yield (
            f"{name} left {lost[1]:,.0f} requests unserved and {base_name} {lost[0]:,.0f}: latencies are those of "
            "requests that finished, so the one that refuses more looks faster"
        )


def _same_requests(base: Sequence[SeedRun], here: Sequence[SeedRun]) -> bool:
    """Whether any run of the one had the requests of a run of the other, as far as it is known."""
    if all(run.asked for run in (*base, *here)):
        return bool({run.asked for run in base} & {run.asked for run in here})
    return bool({run.lengths for run in base} & {run.lengths for run in here})
