"""What a run leaves behind: the result folder, the page people open, and the summary on the console.

Call `choose_output_dir` before the simulation, so that a wrong folder does not cost a run. Call `write_result` after
it, and `update_result` when its intervals are known. `print_summary`, `print_intervals` and `summary_json` are for the
terminal.
"""

from steelyard.report.console import print_intervals, print_summary
from steelyard.report.folder import choose_output_dir, summary_json, update_result, write_result
from steelyard.report.trace import trace_note

__all__ = [
    "choose_output_dir",
    "print_intervals",
    "print_summary",
    "summary_json",
    "trace_note",
    "update_result",
    "write_result",
]
