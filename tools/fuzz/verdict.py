"""Judges the outcome of a case: what no input may ever do."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256

from tools.fuzz.case import Case
from tools.fuzz.nursery import BYTES, UNCAUGHT, Outcome

INTERNAL_ERROR = 70
_DIFFERENCES = {"parity", "replay"}  # exit with 1 if what they compare differs
_LINES, _LINE = 16, 2500  # most lines of a refusal, and most characters of one
_MENDED = "results.jsonl"  # of which half a last line is removed, and which is removed if it is empty
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
_PARTIAL = re.compile(r"\.part$|\bsteelyard-(partial|unfinished)|\.tmp$")
_FRAME = re.compile(r'File "[^"]*?((?:steelyard|tools|site-packages)/[^"]+)", line \d+, in (\S+)')
_RAISED = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Result|Interrupt|Iteration|Warning|Overflow\w*))\b", re.M
)


@dataclass(frozen=True)
class Failure:
    """What went wrong, and a name under which the same fault is known again."""

    kind: str
    words: str
    place: str = ""

    @property
    def signature(self) -> str:
        """Short enough for a file's name."""
        digest = sha256(f"{self.kind} {self.place}".encode()).hexdigest()[:8]
        return f"{self.kind}-{digest}"


def judge(case: Case, got: Outcome) -> Failure | None:
    """The first thing that is wrong, the worst first; None if all is well."""
    if got.timed_out:
        return Failure("hang", f"stopped after {got.seconds:.0f} s of CPU time", f"{case.name} {case.label}")
    if got.code < 0:
        return Failure("signal", f"ended by signal {-got.code}", f"{case.name} {case.label}")
    if "Traceback (most recent" in got.stderr or got.code in (UNCAUGHT, INTERNAL_ERROR):
        return Failure("traceback", _tail(got.stderr), _place(got.stderr))
    if got.peak_bytes > BYTES:
        return Failure("memory", f"{got.peak_bytes >> 20} MiB", f"{case.name} {case.label}")
    if case.code not in (None, got.code):
        told = f"exit code {got.code} instead of {case.code}: {_tail(got.stderr)}"
        return Failure("nonsense" if got.code == 0 else "exit-code", told, case.why)
    if got.code == 1 and case.name in _DIFFERENCES:
        return None
    if got.code == 0:
        return _accepted(case, got)
    if got.code == 2:
        return _refused(case, got)
    if "invariants" in got.stderr:
        return Failure("broken-result", _tail(got.stderr), re.sub(r"[\d.e+-]+", "#", got.stderr[:200]))
    return Failure("exit-code", f"exit code {got.code}: {_tail(got.stderr)}", f"{case.name} {got.code}")


def _accepted(case: Case, got: Outcome) -> Failure | None:
    if "Warning:" in got.stderr:
        return Failure("warning", _tail(got.stderr), _place(got.stderr))
    partial = [path for path in got.left if _PARTIAL.search(path)]
    if partial:
        return Failure("left-over", f"left {partial[:3]}", case.name)
    if "--json" in case.command:
        try:
            json.loads(got.stdout if len(got.stdout) < 1 << 16 else "{}", parse_constant=_refuse)
        except ValueError as error:
            return Failure("not-json", f"{error}: {got.stdout[:200]!r}", case.name)
    return _said("output", got.stdout + got.stderr, case)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _refused(case: Case, got: Outcome) -> Failure | None:
    changed = [path for path in got.changed if not (case.name == "compare" and path.endswith(_MENDED))]
    if got.left or changed:
        told = f"a refused run left {list(got.left)[:3]}, changed {changed[:3]}: {_tail(got.stderr)}"
        return Failure("left-over", told, f"{case.name} {re.sub(r'[0-9]+', '#', ' '.join(got.left[:2]))}")
    lines = got.stderr.splitlines()
    if not got.stderr.strip():
        return Failure("silent", "refused without a word", case.name)
    if len(lines) > _LINES or max(map(len, lines)) > _LINE:
        told = f"{len(lines)} lines, the longest of {max(map(len, lines))} characters: {got.stderr[:300]!r}"
        return Failure("long-message", told, f"{case.name} {case.label}")
    if not any(line.startswith("error: ") for line in lines):
        return Failure("not-told", f"no line says what is wrong: {got.stderr[:300]!r}", f"{case.name} {case.label}")
    return _said("message", got.stderr, case)


def _said(what: str, text: str, case: Case) -> Failure | None:
    raw = _CONTROL.search(text)
    if raw:
        near = text[max(0, raw.start() - 60) : raw.end() + 20]
        return Failure("control", f"a control character in the {what}: {near!r}", f"{case.name} {case.label}")
    return None


def _place(stderr: str) -> str:
    """Kind of error and the innermost frame of ours."""
    frames = [f"{file}:{function}" for file, function in _FRAME.findall(stderr)]
    own = [each for each in frames if each.startswith("steelyard")]
    raised = _RAISED.findall(stderr)
    return f"{raised[-1] if raised else ''} {(own or frames or ['?'])[-1]}"


def _tail(stderr: str) -> str:
    return stderr.strip()[-400:]
