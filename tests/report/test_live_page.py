"""The page of a live run: its charts are of the run's history."""

from __future__ import annotations

from steelyard.live.fleet_history import EngineLife, FleetHistory, RoleSpan, UpTime
from steelyard.report.live import curves_chart, live_page
from steelyard.report.live_timeline import engines_chart, roles_chart
from steelyard.report.markup import chart_boxes
from support.report_text import HOSTILE, charts_of, read, words

HISTORY = FleetHistory(
    gpus=8,
    seconds=100.0,
    roles=[RoleSpan(0.0, 60.0, 6, 2), RoleSpan(60.0, 100.0, 3, 4)],
    engines=[
        EngineLife(0, 2, [UpTime(0.0, 30.0, lost=True), UpTime(40.0, 100.0)]),
        EngineLife(1, 4, [UpTime(0.0, 60.0)]),
    ],
    changed=[60.0],
)


def test_roles_stand_on_each_other_up_to_all_gpus() -> None:
    training, rollout, rest, changes = roles_chart(HISTORY).marks
    assert training.x.tolist() == [0.0, 60.0, 100.0] and training.y.tolist() == [2.0, 4.0, 4.0]
    assert rollout.low is not None and rest.low is not None
    assert (rollout.low == training.y).all() and (rest.low == rollout.y).all()
    assert rollout.y.tolist() == [8.0, 7.0, 7.0] and set(rest.y.tolist()) == {8.0}
    assert changes.x.tolist() == [60.0]


def test_each_engine_has_its_line_and_its_losses() -> None:
    up, lost = engines_chart(HISTORY).marks
    assert up.ends is not None and up.low is not None
    assert list(zip(up.x.tolist(), up.ends.tolist(), strict=True)) == [(0.0, 30.0), (40.0, 100.0), (0.0, 60.0)]
    assert ((up.y + up.low) / 2).tolist() == [0.0, 0.0, 1.0]
    assert (lost.x.tolist(), lost.y.tolist()) == ([30.0], [0.0])


def test_the_page_has_what_was_found_and_no_empty_tables() -> None:
    curves = {"live": [(0.0, 0.0), (50.0, 900.0)], HOSTILE: [(0.0, 0.0)]}
    charts = [roles_chart(HISTORY), engines_chart(HISTORY), curves_chart("tokens", "Tokens", curves, "tokens")]
    tables = {"Steps": [["step", "tokens"], ["1", HOSTILE]], "Recoveries": [["engine"]]}
    page = live_page(HOSTILE, "It ran.", {"GPUs": chart_boxes(charts, "one")}, tables)
    assert set(charts_of(page)) == {"roles", "engines", "tokens"}
    assert "<script>alert" not in page and read(page).scripts == 4
    text = words(page)
    assert "It ran." in text and "Steps step tokens 1" in text and "Recoveries" not in text


def test_a_run_without_engines_has_a_page() -> None:
    empty = FleetHistory(gpus=8, seconds=1.0)
    assert "Nothing to show" in engines_chart(empty).svg() and "NaN" not in roles_chart(empty).svg()
