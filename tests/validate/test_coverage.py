"""Stated errors hold about nine in ten answers of each class, and runs belong to the class of most of their time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from steelyard.cost.bundle import shipped_bundle
from steelyard.hardware import find_gpu
from steelyard.validate import coverage
from steelyard.validate.coverage import class_of, of_operators, of_runs
from support.known import known


def test_stated_errors_hold_most_held_out_points_of_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "transfer_errors", lambda *_: None)
    found = {each.kind: each for each in of_operators(known(shipped_bundle("h200")), find_gpu("h200"))}
    assert list(found) == ["interpolated", "extrapolated", "analytic"]
    for kind, each in found.items():
        assert each.of > 100 and 0.8 <= each.share <= 0.97, (kind, each.share)


def test_transferred_answers_are_judged_by_the_transfer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = [0.05, -0.05], [0.9, 0.02]
    monkeypatch.setattr(coverage, "transfer_errors", lambda *_: ({"matrices, fp8": far}, {}, {"decodes, fp8": near}))
    found = {each.kind: each for each in of_operators(known(shipped_bundle("h200")), find_gpu("h200"))}
    assert (found["transferred"].inside, found["transferred"].of) == (2, 2)


def test_a_run_belongs_to_the_provenance_of_most_of_its_time() -> None:
    def run(stated: list[bool], **provenance: float) -> Any:
        return SimpleNamespace(stated=stated, provenance=provenance)

    mixed, measured, analytic = (
        run([True, False], measured=0.4, analytic=0.6),
        run([True], measured=0.5, analytic=0.4),
        run([True], analytic=1.0),
    )
    found = of_runs([mixed, measured, analytic])
    assert [(each.kind, each.inside, each.of) for each in found] == [("measured", 1, 1), ("analytic", 2, 3)]
    assert class_of({"measured": 0.2, "transferred": 0.8}) == "transferred"
