"""What a run leaves behind: the result folder, the page people open, and the summary on the console.

Make an `OutputFolder` before the simulation, so that a wrong folder does not cost a run, and write to its `stage` after
it. `choose_output_dir`, `write_result` and `update_result` do the same for a folder without a run. `print_summary`,
`print_intervals` and `summary_json` are for the terminal.
"""

from steelyard.report.console import print_intervals, print_summary
from steelyard.report.folder import (
    OutputFolder,
    choose_output_dir,
    summary_json,
    update_result,
    write_files,
    write_result,
)
from steelyard.report.trace import trace_note

__all__ = [
    "OutputFolder",
    "choose_output_dir",
    "print_intervals",
    "print_summary",
    "summary_json",
    "trace_note",
    "update_result",
    "write_files",
    "write_result",
]
