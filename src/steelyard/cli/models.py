"""``steelyard models``"""

from __future__ import annotations

from rich.table import Table

from steelyard.cli.console import out
from steelyard.model import model_names


def command() -> None:
    """List the models of the catalog. Any other model is given by the path of its config.json."""
    table = Table("model", "what it is", box=None, pad_edge=False)
    for name, description in model_names().items():
        table.add_row(name, description)
    out.print(table)
