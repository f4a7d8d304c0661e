"""The fuzzer sees what it is there to see, makes cases small, and its cases are the same everywhere."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import UserError, scenario_from_dict
from steelyard.cli import COMMANDS, edge
from steelyard.scenario import posttrain_from_dict
from tools.fuzz import nursery
from tools.fuzz.campaign import Campaign, case_of, keep, table, tried
from tools.fuzz.case import Case, Content
from tools.fuzz.cases import MAKERS, WEIGHTS
from tools.fuzz.scenarios import scenario
from tools.fuzz.shrink import shrunk
from tools.fuzz.verdict import judge

QUIET = Case(("gpus",))


def judged(code: int, stderr: str = "", stdout: str = "", case: Case = QUIET, **more: object) -> str:
    """The kind of failure that an outcome is, or nothing."""
    given_ = {"seconds": 0.1, "peak_bytes": 10**8, "timed_out": False, "left": (), "changed": (), **more}
    failure = judge(case, nursery.Outcome(code, stdout, stderr, **given_))  # type: ignore[arg-type]
    return "" if failure is None else failure.kind


def test_what_must_not_happen_is_seen() -> None:
    assert judged(0) == judged(2, "error: no") == judged(1, case=Case(("parity", "x"))) == ""
    assert judged(1) == judged(3, "x") == "exit-code"
    assert judged(70, "error: internal error: x") == judged(0, "Traceback (most recent call last):") == "traceback"
    assert judged(-9, timed_out=True) == "hang"
    assert judged(-11) == "signal"
    assert judged(0, peak_bytes=2**31) == "memory"
    assert judged(2, "error: no", left=("out",)) == judged(2, "error: no", changed=("s",)) == "left-over"
    assert judged(0, left=("out/x.part",)) == "left-over"
    assert judged(2, "") == "silent"
    assert judged(2, "error: " + "x" * 9999) == judged(2, "error: x\n" * 99) == "long-message"
    assert judged(2, "Usage: steelyard [OPTIONS]\nError: No such option") == "not-told"
    assert judged(2, "error: \x1b[31m") == judged(0, stdout="\x07") == "control"
    assert judged(0, "x.py:3: RuntimeWarning: overflow") == "warning"
    assert judged(1, "the result violates 1 invariants:\nbusy is 2") == "broken-result"
    assert judged(0, stdout='{"a": NaN}', case=Case(("plan", "--json"))) == "not-json"
    assert judged(0, case=Case(("gpus",), code=2)) == "nonsense"


def test_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that raises, hangs, takes memory or writes is stopped, and the nursery says what it did."""

    def hang(arguments: list[str]) -> None:
        while True:
            pass

    def grow(arguments: list[str]) -> None:
        kept = bytearray(1200 << 20)
        kept[:: 1 << 12] = b"x" * len(kept[:: 1 << 12])

    def write(arguments: list[str]) -> None:
        Path("left").write_text("x")
        raise UserError("no")

    def fail(arguments: list[str]) -> None:
        raise KeyError("x")

    for command, kind in ((hang, "hang"), (grow, "memory"), (write, "left-over"), (fail, "traceback")):
        if command is hang:
            monkeypatch.setattr(nursery, "SECONDS", 1)
        else:
            monkeypatch.undo()  # a slow machine takes more than a second to write so much memory
        monkeypatch.setattr("steelyard.cli.main", lambda run=command: exit(edge.guarded(run, [])))
        outcome, failure = tried(QUIET)
        assert failure is not None and failure.kind == kind, (kind, failure, outcome)


def test_cases_are_the_same_everywhere() -> None:
    for number in range(20):
        assert case_of(3, number).to_text() == case_of(3, number).to_text()
    assert case_of(3, 1) != case_of(4, 1)


def test_all_kinds_of_cases_come() -> None:
    assert MAKERS.keys() == WEIGHTS.keys()
    made = [case_of(0, number) for number in range(1500)]
    assert {case.name for case in made} >= set(COMMANDS)
    labels = {case.label for case in made}
    assert labels >= {"scenario", "yaml", "set", "config", "trace", "trajectories", "capture", "golden", "options"}


def test_cases_are_written_and_read(tmp_path: Path) -> None:
    files = {
        "a.json": Content(b"[" * 5000 + b"x"),
        "raw": Content(b"\xff\x00"),
        "f": Content(kind="folder"),
        "l": Content(b"nowhere", kind="link"),
        "z.gz": Content(b"\n" * 100, times=3, gzipped=True),
        "p": Content(kind="fifo"),
    }
    case = Case(("simulate", "a\udcff", "ü"), files, "x", "why", 2)
    assert Case.from_text(case.to_text()) == case and len(case.to_text()) < 2000
    case.lay_out(tmp_path)
    assert (tmp_path / "a.json").stat().st_size == 5001 and (tmp_path / "l").is_symlink()


def test_failing_cases_become_small() -> None:
    case = Case(("simulate", "s", "--a", "b", "--json"), {"s": Content(b"1\n2\n3\n4\n"), "other": Content()})
    small = shrunk(case, lambda tried_: b"3" in tried_.files.get("s", Content()).data)
    assert small.command == ("simulate",) and dict(small.files) == {"s": Content(b"3\n")}


def test_a_campaign_is_continued(tmp_path: Path) -> None:
    first = Campaign(5, tmp_path)
    assert [each.number for each in first.run(3, 1)] == [0, 1, 2]
    (tmp_path / "seed-5.jsonl").open("a").write('{"number": 3, "comm')  # cut by a kill
    second = Campaign(5, tmp_path)
    assert len(second.ran) == 3 and [each.number for each in second.run(5, 1)] == [3, 4]
    assert "all" in table(second.ran)


def test_failures_are_kept(tmp_path: Path) -> None:
    case = Case(("gpus",), {"x": Content(b"1")}, code=2)
    _, failure = tried(case)
    assert failure is not None
    keep(case, failure, tmp_path, "here")
    (path,) = tmp_path.iterdir()
    kept = Case.from_text(path.read_text())
    assert kept.command == ("gpus",) and not kept.files and "nonsense (here)" in kept.why


@settings(max_examples=150)
@given(st.randoms(use_true_random=False), st.booleans())
def test_a_scenario_is_valid_or_refused(r: Random, posttrain: bool) -> None:
    written = scenario(r, posttrain)
    try:
        (posttrain_from_dict if posttrain else scenario_from_dict)(written)
    except UserError as error:
        assert str(error)
