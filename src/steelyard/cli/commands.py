"""The list of commands. Each is a module with one function, ``command``, which is imported when the command is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from steelyard import __version__
from steelyard.cli.edge import one_line
from steelyard.collector import collector_off

COMMANDS = {
    "simulate": "Simulate a scenario and write its result folder.",
    "emulate": "Serve a scenario's engines over HTTP without a GPU, in real time.",
    "gateway": "Put one address in front of OpenAI-compatible engines, with the routers of a simulated fleet.",
    "parity": "Replay decisions of vLLM's own scheduler and compare every step.",
    "validate": "Replay the requests of a captured engine, and compare with its measurements.",
    "calibrate": "Fit the host's times to captures, and test them on held-out captures.",
    "fidelity": "Validate against all captures and tables, and write the fidelity page.",
    "posttrain": "Simulate RL post-training: rollouts with tools, training and weight sync, step after step.",
    "replay": "Decide every event of a log again and compare the commands, byte for byte.",
    "plan": "Recommend how to split a scenario's GPUs between rollout and training, and how to lay both out.",
    "compare": "Compare ways to run post-training: ours, bounds, other systems, and ours with one setting changed.",
    "estimator-eval": "Evaluate estimators of what a trajectory has left, on held-out tasks.",
    "profile": "Measure this machine's GPU, operator by operator (needs torch; vLLM's kernels where installed).",
    "schema": "Print the JSON Schema of a scenario file.",
    "models": "List the models of the catalog. Any other model is given by the path of its config.json.",
    "gpus": "List the GPUs of the catalog.",
}
"""Every command, and the first sentence of its help; the command ``a-b`` is the module ``a_b``."""


_MISUSE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_HELP = "NoArgsIsHelpError"  # whose message is the help


@contextmanager
def _misuse_printable() -> Iterator[None]:
    """What a wrong command line quotes of itself is shown as in other messages."""
    try:
        yield
    except _MISUSE as error:
        if type(error).__name__ != _HELP:
            error.message = one_line(str(error.message))
        raise


class Deferred(TyperCommand):
    """A command whose module is imported when it is used. Until then it has a name and a summary."""

    def __init__(self, name: str, summary: str) -> None:
        super().__init__(name, help=summary)

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """The context of the imported command, which replaces this one."""
        return self._loaded().make_context(*arguments, **more)

    def _loaded(self) -> Any:
        assert self.name is not None
        with collector_off():
            module = import_module(f"steelyard.cli.{self.name.replace('-', '_')}")
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(self.name)(module.command)
        return typer.main.get_command(alone)


class Commands(TyperGroup):
    """All commands, each imported when it is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: Deferred(name, summary) for name, summary in COMMANDS.items()}

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """Parse the options before a command."""
        with _misuse_printable():
            return super().make_context(*arguments, **more)

    def invoke(self, context: Any) -> Any:
        """Parse and run a command."""
        with _misuse_printable():
            return super().invoke(context)


app = typer.Typer(
    name="steelyard",
    cls=Commands,
    help="Weigh an LLM serving fleet before it is built.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"steelyard {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an internal error. May stand anywhere.")
    ] = False,
) -> None:
    """Weigh an LLM serving fleet before it is built."""
