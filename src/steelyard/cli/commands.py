"""The list of commands. Each is a module with one function, ``command``, which is imported when the command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from steelyard.cli.misuse import misuse_as_user_error
from steelyard.collector import collector_off
from steelyard.errors import UserError, did_you_mean, quoted

COMMANDS = {
    "simulate": "Simulate a scenario and write its result folder.",
    "search": "Find the fleet to buy: the best candidate within the limits, the next best, and how sure that is.",
    "capacity": "Find the largest rate that a fleet carries within its limits, or the smallest fleet for a rate.",
    "advise": "Replay recorded traffic against fixed and autoscaled fleets: what each would have cost and missed.",
    "sweep": "Simulate a grid of scenarios, or find the capacity of each, to a table and charts.",
    "emulate": "Serve a scenario's engines over HTTP without a GPU, in real time.",
    "gateway": "Put one address in front of OpenAI-compatible engines, with the routers of a simulated fleet.",
    "parity": "Replay decisions of vLLM's own scheduler and compare every step.",
    "validate": "Replay the requests of a captured engine, and compare with its measurements.",
    "calibrate": "Fit the host's times to captures, and test them on held-out captures.",
    "fidelity": "Validate against all captures and tables, and write the fidelity page.",
    "posttrain": "Simulate RL post-training: rollouts with tools, training and weight sync, step after step.",
    "control": "Run post-training under the live controller: on emulated engines, or a small model that really learns.",
    "replay": "Decide every event of a log again and compare the commands, byte for byte.",
    "explain": "Say in plain sentences what a log's decision core decided, and why.",
    "plan": "Recommend how to split a scenario's GPUs between rollout and training, and how to lay both out.",
    "compare": "Compare serving scenarios or results side by side, or ways to run post-training.",
    "estimator-eval": "Evaluate estimators of what a trajectory has left, on held-out tasks.",
    "emit": "Write what runs a scenario's fleet with vLLM, SGLang, Dynamo, KServe, verl or slime.",
    "import": "Read a deployment's command or manifest into a scenario file.",
    "ui": "Show a folder's scenarios and results on a local page: edit, run, ask what-if, compare, follow.",
    "profile": "Measure this machine's GPU, operator by operator (needs torch; vLLM's kernels where installed).",
    "schema": "Print the JSON Schema of a scenario file.",
    "models": "List the models of the catalog. Any other model is given by the path of its config.json.",
    "gpus": "List the GPUs of the catalog.",
}
"""Every command, and the first sentence of its help; the command ``a-b`` is the module ``a_b``."""

_PROGRAM = "steelyard"


class Deferred(TyperCommand):
    """A command whose module is imported when it is used. Until then it has a name and a summary."""

    def __init__(self, name: str, summary: str) -> None:
        super().__init__(name, help=summary)

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """The context of the imported command, which replaces this one."""
        assert self.name is not None
        return app_command(self.name).make_context(*arguments, **more)


def app_command(name: str) -> Any:
    """A command with its options, imported now."""
    with collector_off():
        module = import_module(f"steelyard.cli.{name.replace('-', '_')}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(module.command)
    return typer.main.get_command(alone)


class Commands(TyperGroup):
    """All commands, each imported when it is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: Deferred(name, summary) for name, summary in COMMANDS.items()}

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """Parse the options before a command."""
        with misuse_as_user_error(_PROGRAM):
            return super().make_context(*arguments, **more)

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Find a command by its name."""
        name = arguments[0]
        if name not in self.commands and not context.resilient_parsing:
            raise UserError(f"{_PROGRAM}: {quoted(name)}: no such command; {did_you_mean(name, self.commands)}")
        return super().resolve_command(context, arguments)

    def invoke(self, context: Any) -> Any:
        """Parse and run a command."""
        with misuse_as_user_error(_PROGRAM, context):
            return super().invoke(context)


app = typer.Typer(
    name=_PROGRAM,
    cls=Commands,
    help="Weigh an LLM serving fleet before it is built.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from steelyard import __version__

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
