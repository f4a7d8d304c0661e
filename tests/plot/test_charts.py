"""Charts as SVG, as data and as tables."""

from __future__ import annotations

import csv
import re
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from steelyard import UserError
from steelyard.plot import Axis, Bar, BarChart, Chart, Marks, Panels, Threshold

X = np.array([0.0, 1.0, 2.0, 4.0])
SVG = "{http://www.w3.org/2000/svg}"


def chart(*marks: Marks, **more: object) -> Chart:
    settings: dict[str, object] = {"x": Axis("time", "clock"), "y": Axis("requests", "number", low=0.0), **more}
    return Chart("a", "A <title> & more", marks=marks, **settings)  # type: ignore[arg-type]


def corners(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


def test_a_line_lies_where_its_values_are() -> None:
    made = chart(Marks("line", X, np.array([0.0, 10.0, 5.0, 10.0]), "running"), y=Axis("requests", "number", 0.0, 10.0))
    root = ElementTree.fromstring(made.svg(card=False))
    (line,) = (each for each in root.iter(f"{SVG}path") if each.get("class") == "line h1")
    points = corners(line.attrib["d"])
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    (x0, foot), (x1, top), (x2, middle), (x4, last) = points
    assert top == last < middle < foot and middle == pytest.approx((top + foot) / 2)
    assert x2 - x0 == pytest.approx(2 * (x1 - x0)) and x4 - x0 == pytest.approx(4 * (x1 - x0))


def test_a_line_breaks_where_values_are_missing() -> None:
    made = chart(Marks("line", X, np.array([1.0, np.nan, 2.0, 3.0])))
    assert made.svg(card=False).count('class="line h1"') == 2 and "nan" not in made.svg().lower()
    assert [row[2] for row in csv.reader(StringIO(made.csv()))][1:] == ["1.0", "", "2.0", "3.0"]


@pytest.mark.parametrize("kind", ["line", "steps", "band", "dots", "bars", "rules", "spans"])
@pytest.mark.parametrize("log", [False, True])
def test_all_marks_stay_within_the_plot(kind: str, log: bool) -> None:
    x = X + 1
    marks = Marks(kind, x, x * 3, "a", low=x, ends=x + 0.5, fill=True)  # type: ignore[arg-type]
    limits = (Threshold("limit", 2.0), Threshold("far", 99.0), Threshold("top", 7.0, "y"), Threshold("up", 99.0, "y"))
    made = chart(marks, x=Axis("time", "clock", high=6.0, log=log), limits=limits)
    root = ElementTree.fromstring(made.svg(400, 200, card=False))
    drawn = [each for each in root.iter(f"{SVG}path") if "h1" in each.get("class", "")]
    assert drawn and all(0 <= x <= 400 and 0 <= y <= 200 for each in drawn for x, y in corners(each.attrib["d"]))
    assert {each.text for each in root.iter(f"{SVG}text")} >= {"limit 2.00 s", "far 99.0 s →", "top 7.00"}


def test_names_cannot_break_out() -> None:
    hostile = "</svg><script>alert(1)</script>\"'&"
    made = Chart(
        "a",
        hostile,
        Axis(hostile, "number", names=(hostile, "b")),
        Axis(hostile, "number"),
        (Marks("dots", X[:2], X[:2], hostile, labels=[hostile, hostile]),),
        (Threshold(hostile, 1.0),),
    )
    bars = BarChart("b", hostile, Axis(hostile, "number"), (Bar(hostile, 1.0, hostile),))
    for text in (made.svg(), bars.svg(), Panels((made, bars)).svg()):
        ElementTree.fromstring(text)
        assert "<script" not in text


def test_ends_of_axes_are_those_of_the_marks() -> None:
    made = chart(Marks("steps", X, X * 10), Marks("rules", np.array([9.0]), np.array([1e9]))).fitted()
    assert (made.x.low, made.x.high) == (0.0, 9.0)
    assert made.y.low == 0.0 and made.y.high == pytest.approx(43.2), "rules stand over the whole height"
    lone = chart(Marks("dots", np.array([5.0]), np.array([0.0]))).fitted()
    assert lone.x.low == 5.0 and (lone.x.high or 0) > 5.0 and (lone.y.high or 0) > 0


def test_zero_is_an_end_like_any_other() -> None:
    data = chart(Marks("line", X, X), y=Axis("requests", "number", 0.0, 4.0)).data()
    assert data["y"]["low"] == 0.0 and data["x"]["low"] == 0.0


def test_nothing_to_show_is_said() -> None:
    for made in (chart(), chart(Marks("line", X[:0], X[:0]))):
        assert "Nothing to show" in made.svg() and made.data()["empty"].startswith("Nothing to show")
    assert "NaN" not in BarChart("b", "t", Axis("x", "share"), ()).svg()


def test_bars_begin_and_end_where_they_should() -> None:
    bars = (Bar("up", 1.0, "+1"), Bar("down", -1.0, "-1"), Bar("far", 9.0, "+9", interval=(0.5, 10.0)))
    root = ElementTree.fromstring(
        BarChart("b", "t", Axis("x", "change", -2.0, 2.0), bars, band=(-0.5, 0.5)).svg(card=False)
    )
    up, down, far = (each.attrib for each in root.iter(f"{SVG}rect") if "bars" in each.get("class", ""))
    middle = float(up["x"])
    assert float(down["x"]) + float(down["width"]) == pytest.approx(middle, abs=0.2)
    assert float(up["width"]) == pytest.approx(float(down["width"]), abs=0.2)
    assert float(far["width"]) == pytest.approx(2 * float(up["width"]), abs=0.2), "cut at the end of the axis"


def test_charts_are_saved_as_svg_or_csv(tmp_path: Path) -> None:
    made = chart(Marks("line", X, X, "=1+1"))
    made.save(tmp_path / "a.svg")
    made.save(str(tmp_path / "a.csv"))
    assert (tmp_path / "a.svg").read_text() == made.svg() == made._repr_svg_()
    rows = list(csv.reader((tmp_path / "a.csv").open()))
    assert rows[0] == ["series", "time", "requests", "low", "end"] and rows[1][0] == "'=1+1"
    with pytest.raises(UserError, match=r"a\.png: a chart is saved as \.svg or as \.csv"):
        made.save(tmp_path / "a.png")


def test_panels_are_one_below_the_other() -> None:
    made = Panels((chart(Marks("line", X, X)), BarChart("b", "t", Axis("x", "share"), (Bar("a", 0.5, "x"),))))
    root = ElementTree.fromstring(made.svg())
    first, second = list(root)
    assert float(second.attrib["y"]) >= float(first.attrib["y"]) + float(first.attrib["height"])
    assert float(root.attrib["viewBox"].split()[3]) >= float(second.attrib["y"]) + float(second.attrib["height"])
