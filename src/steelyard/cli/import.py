"""``steelyard import``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import err
from steelyard.cli.outputs import keep_inputs
from steelyard.deploy import KINDS, ImportOptions, read, scenario_yaml
from steelyard.errors import UserError
from steelyard.files.finding import files_below, is_file, is_folder
from steelyard.files.limits import MOST_SCENARIO_BYTES
from steelyard.files.reading import read_text
from steelyard.files.writing import write_text

_ENDINGS = {
    **dict.fromkeys(("vllm-serve", "sglang", "verl", "slime"), "*.sh"),
    **dict.fromkeys(("dynamo", "kserve"), "*.yaml"),
}
_LONGEST_PATH = 4096


def command(
    kind: Annotated[str, typer.Argument(help=f"What to read: {', '.join(KINDS)}.")],
    source: Annotated[str, typer.Argument(help="A command line in quotes, a file, or a folder of `steelyard emit`.")],
    gpu: Annotated[str | None, typer.Option(help="GPU type, where the deployment does not name it.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Engines, where the deployment does not say how many [default: 1].")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the scenario.")] = "imported",
    out: Annotated[Path | None, typer.Option(help="Scenario file to write; printed if not given.")] = None,
) -> None:
    """Read a deployment's command or manifest into a scenario file.

    A deployment has no workload: the file has a stand-in to be replaced. What was defaulted, assumed, ignored or could
    not be read is said on top of the file; the last also on standard error (docs/deployable.md).
    """
    texts = _texts(kind, source)
    found = read(kind, texts, ImportOptions(gpu, replicas, name))
    text = scenario_yaml(found)
    for line in dict.fromkeys(found.remarks.warnings):
        err.print(f"warning: {line}", soft_wrap=True, highlight=False)
    if out is None:
        typer.echo(text, nl=False)
        return
    keep_inputs(f"--out {out}", [out], [Path(each) for each in texts if each != kind])
    write_text(out, text)
    typer.echo(str(out))


def _texts(kind: str, source: str) -> dict[str, str]:
    """The files that are meant, or the command itself."""
    path = Path(source)
    short = len(source) < _LONGEST_PATH and "\0" not in source
    if short and is_folder(path):
        found = files_below(path, _ENDINGS.get(kind, "*"), "a folder of `steelyard emit`")
        if not found:
            raise UserError(f"{path}: has no files {_ENDINGS.get(kind, '*')}")
        return {str(each): _text(each) for each in found}
    if short and is_file(path):
        return {str(path): _text(path)}
    if " " not in source.strip() and kind in _ENDINGS:
        raise UserError(f"{source}: no such file or folder; give one, or a command line in quotes")
    if len(source) > MOST_SCENARIO_BYTES:
        raise UserError(f"the command line has {len(source):,} characters; at most {MOST_SCENARIO_BYTES:,} are read")
    return {kind: source}


def _text(path: Path) -> str:
    return read_text(path, MOST_SCENARIO_BYTES, "a deployment's script or manifest")
