"""Charts as data, drawn as SVG: in notebooks, in files, and by the script of a page.

A `Chart` says what is drawn, with its axes and units. `Chart.svg` draws it without any library, equal bytes for equal
figures; `Chart.data` is what the page's own script draws from, at the width that a screen has.
"""

from steelyard.plot.bars import BarChart
from steelyard.plot.chart import Chart
from steelyard.plot.figure import Figure
from steelyard.plot.marks import Axis, Bar, Marks, Threshold
from steelyard.plot.panels import Panels

__all__ = ["Axis", "Bar", "BarChart", "Chart", "Figure", "Marks", "Panels", "Threshold"]
