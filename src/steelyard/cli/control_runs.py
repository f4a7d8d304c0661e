"""The two kinds of runs of ``steelyard control``: what begins them, and what is shown at their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from steelyard.cli.checks import check_as_written
from steelyard.cli.console import out as console
from steelyard.cli.console import say
from steelyard.cli.control_top import top
from steelyard.errors import UserError
from steelyard.files.finding import is_file, is_folder
from steelyard.files.jsontext import json_lines
from steelyard.files.writing import write_text
from steelyard.live.addresses import GATEWAY, METRICS
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.explain import log_of
from steelyard.live.figures import LiveChange, live_figures
from steelyard.live.fleet_history import fleet_history
from steelyard.live.grpo.run import GrpoRun
from steelyard.live.member import Address
from steelyard.live.operate import ask_controller
from steelyard.live.runs import RUN_FILE, LiveRun, is_over, read_run
from steelyard.posttrain.run import drive
from steelyard.records.jsontext import readable
from steelyard.report.folder import choose_output_dir
from steelyard.report.live import Curve, curves_chart, live_page, step_rows
from steelyard.report.live_run import beside_rows, run_page
from steelyard.report.markup import chart_boxes
from steelyard.scenario import PosttrainScenario, load_posttrain
from steelyard.scenario.live import GrpoScenario, load_grpo

CarryOut = Callable[[LiveRun], None]
_SPEED = 20.0
_UPGRADE_SECONDS = 120.0  # for a new controller to take over; chosen
_LOOK_SECONDS = 0.2  # between two looks for it
_OURS, _STATIC = "ours", "static"
ACTIONS = ("status", "top", "upgrade", "drain", "restore", "plan", "apply", "pause", "continue")
_CHANGE_STATES = {
    "none": "it is done",
    "proposed": "it will be carried out at the next weight sync",
    "waiting": "it waits for `control apply`",
    "applying": "it is being carried out",
}
_HINDSIGHT = ("oracle", "static-best")


class Asked(NamedTuple):
    """What the command line says of a new run."""

    path: Path
    overrides: Sequence[str]
    out: Path | None
    speed: float | None
    metrics: int
    resume: bool


def emulate(asked: Asked, carry_out: CarryOut) -> None:
    """Run a post-training scenario on emulated engines."""
    scenario = load_posttrain(asked.path, asked.overrides)
    _check(scenario)
    folder = _folder(asked, scenario.name)
    if is_file(folder / RUN_FILE):
        run = EmulatedRun.read(folder)
        _check_same(run.scenario == scenario, folder)
    else:
        speed = _SPEED if asked.speed is None else asked.speed
        run = EmulatedRun.at_free_ports(scenario, folder, speed, metrics=asked.metrics)
        run.write()
    carry_out(run)
    _show_emulated(run)


def learn(asked: Asked, carry_out: CarryOut) -> None:
    """Have a small model learn, with our scheduling and, if asked for, with a static one."""
    if asked.speed is not None:
        raise UserError("--speed: is for emulated engines, and these are real; leave it out")
    scenario = load_grpo(asked.path, asked.overrides)
    folder = _folder(asked, scenario.name)
    ways = {_OURS: scenario}
    if scenario.baseline:
        ways[_STATIC] = scenario.replace(staleness=0, router="round-robin", pool="none")
    runs: dict[str, GrpoRun] = {}
    for name, each in ways.items():
        say(f"{name}: staleness {each.staleness}, {each.router}; making the model")
        if is_file(folder / name / RUN_FILE):
            runs[name] = GrpoRun.read(folder / name)
            _check_same(runs[name].scenario == each, folder)
        else:
            runs[name] = GrpoRun.at_free_ports(each, folder / name, asked.metrics)
            runs[name].write()
        if not is_over(runs[name]):
            carry_out(runs[name])
    _show_learnt(scenario, folder, runs)


def _folder(asked: Asked, name: str) -> Path:
    """Where a run is or will be."""
    if asked.resume and asked.out is not None and is_folder(asked.out):
        return asked.out
    return choose_output_dir(asked.out, f"{name}-live", overwrite=False)


def _check_same(same: bool, folder: Path) -> None:
    if not same:
        raise UserError(f"{folder}: --resume: its run has another scenario; give another folder, or the same scenario")


def resume(folder: Path, overrides: Sequence[str], speed: float | None, carry_out: CarryOut) -> None:
    """Go on with a run whose processes have all died."""
    if speed is not None or overrides:
        raise UserError(f"{folder}: a run that is resumed has its own settings; leave out --speed and --set")
    run = read_run(folder)
    carry_out(run)
    if isinstance(run, EmulatedRun):
        _show_emulated(run)
    elif isinstance(run, GrpoRun):
        _show_learnt(run.scenario, folder, {_OURS: run})


def operate(action: str, words: Sequence[str]) -> None:
    """Ask the controller of a run that is under way."""
    match action, list(words):
        case "status", [folder]:
            _show_status(read_run(Path(folder)))
        case "top", [folder]:
            top(read_run(Path(folder)), console)
        case "upgrade", [folder]:
            _upgrade(read_run(Path(folder)))
        case "drain" | "restore", [folder, number] if number.isascii() and number.isdigit() and len(number) < 10:
            ask_controller(_address(folder), {"what": action, "engine": int(number)})
            say(f"engine {int(number)}: {action}")
        case "plan" | "apply" | "pause" | "continue", [folder]:
            _show_plan(ask_controller(read_run(Path(folder)).address("operator"), {"what": action}))
        case "status" | "top" | "upgrade" | "plan" | "apply" | "pause" | "continue", _:
            raise UserError(f"control {action}: give a run's folder")
        case _:
            raise UserError(f"control {action}: give a run's folder and the number of an engine")


def _address(folder: str) -> Address:
    return read_run(Path(folder)).address("operator")


def _upgrade(run: LiveRun) -> None:
    """Have the controller save and end, and wait until its successor has taken over."""
    before = ask_controller(run.address("operator"), {"what": "release"})["fence"]
    begun = time.monotonic()
    while True:
        with suppress(UserError):  # until the new one listens
            status = ask_controller(run.address("operator"), {"what": "status"})
            if status["fence"] > before:
                break
        if is_over(run):
            say("the run was over before a new controller was needed")
            return
        if time.monotonic() - begun > _UPGRADE_SECONDS:
            raise UserError(
                f"{run.folder}: no new controller after {_UPGRADE_SECONDS:g} s; see {run.folder}/controller.log"
            )
        time.sleep(_LOOK_SECONDS)
    under_way = sum(status["trajectories"].values())
    seconds = time.monotonic() - begun
    say(f"controller {status['fence']} took over after {seconds:.1f} s; {under_way} trajectories go on")


def _show_status(run: LiveRun) -> None:
    status = ask_controller(run.address("operator"), {"what": "status"})
    doing = ", ".join(f"{count} {name}" for name, count in status["trajectories"].items()) or "none under way"
    say(f"{status['trained']} of {status['steps']} steps trained; engines have weights {status['weights']}")
    say(f"trajectories: {doing}; {status['events']:,} events in {status['second']:,.0f} s")
    table = Table("engine", "TP", "state", "weights", "turns", "seats", "address", box=None)
    if status["planner"] is not None:
        _show_plan(status["planner"])
    for each in status["engines"]:
        words = ("number", "tp", "state", "weights", "busy", "seats", "url")
        table.add_row(*(str(each[word]) for word in words))
    console.print(table)
    for name, path in ((GATEWAY, "/v1"), (METRICS, "/metrics")):
        known = run.addresses.find(0, name)[1] != 0
        say(f"{name}: {run.addresses.url(0, name) + path if known else 'not up yet'}")


def _show_plan(planner: dict[str, Any]) -> None:
    say(f"in force: {planner['plan']}")
    proposal = planner["proposal"]
    if proposal is None:
        say("no change is proposed")
    else:
        say(f"proposed after step {proposal['after_step']}: {proposal['plan']}")
        gain, step = proposal["predicted_gain"], proposal["predicted_step"]
        say(f"predicted: {step:,.1f} s a step, {gain:,.1f} s less than now; {_CHANGE_STATES[planner['state']]}")
    if planner["paused"]:
        say("changes are paused: `control apply` carries a proposal out, `control continue` all of them")


def _say_change(change: LiveChange) -> None:
    gained = "not known yet" if change.realised is None else f"{change.realised:,.1f} s"
    say(f"after step {change.step}: {change.what}")
    say(f"  {change.outcome}; predicted gain of a step {change.predicted:,.1f} s, realised {gained}")


def _check(scenario: PosttrainScenario) -> None:
    check_as_written(scenario)
    if scenario.mode == "colocated":
        raise UserError(f"{scenario.source}: mode: colocated cannot be run live yet; use split or an overlapped mode")
    if scenario.planner in _HINDSIGHT:
        raise UserError(
            f"{scenario.source}: planner: {scenario.planner} knows trajectories that have not been generated yet, "
            "so it can only be simulated; use simulated or libra"
        )
    if scenario.tail.kind == "reconfigure":
        raise UserError(
            f"{scenario.source}: tail: reconfigure cannot be run live yet, since no live driver moves GPUs between "
            "engines inside a step; use repack"
        )
    if scenario.switch != "difference":
        raise UserError(
            f"{scenario.source}: switch: {scenario.switch} can only be simulated; live runs change by difference"
        )
    if scenario.pool != "none" and scenario.planner != "given":
        raise UserError(
            f"{scenario.source}: pool: {scenario.pool} cannot be run live beside a planner yet; leave one of them out"
        )


def _show_emulated(run: EmulatedRun) -> None:
    """Show a run's figures beside those of its simulation, and write them."""
    found, simulated = live_figures(run.store), drive(as_live(run.scenario))
    summary = readable({"live": found.to_dict(), "simulated": simulated.summary})
    write_text(run.folder / "summary.json", summary)
    rows = beside_rows(found, simulated.summary)
    table = Table(*rows[0], box=None)
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    for change in found.changes:
        _say_change(change)
    for each in found.recoveries:
        again = "did not come back" if each.seconds is None else f"was back after {each.seconds / run.speed:.2f} s"
        say(f"engine {each.replica} was lost at {each.at:.1f} s and {again}")
    scenario = run.scenario
    history = fleet_history(run.store, scenario.gpus, scenario.training.gpus)
    page = run_page(scenario.name, run.speed, found, history, simulated, log_of(run.store))
    write_text(run.folder / "report.html", page)
    say(f"written to {run.folder}; look at {run.folder / 'report.html'}")


def as_live(scenario: PosttrainScenario) -> PosttrainScenario:
    """A scenario whose planner takes a step to think, as that of a live run does."""
    return scenario if scenario.planner == "given" else scenario.replace(planning="during-step")


def _show_learnt(scenario: GrpoScenario, folder: Path, runs: dict[str, GrpoRun]) -> None:
    """Show how the reward rose, over time and with each way of scheduling."""
    curves = {name: rewards(run) for name, run in runs.items()}
    chart = curves_chart("reward", "Reward over time", curves, "mean reward")
    rows = [["", "reward of the first steps", "of the last steps", "seconds"]]
    for name, curve in curves.items():
        values = [value for _, value in curve]
        few = max(1, min(3, len(values) // 2))
        ends = sum(values[:few]) / few, sum(values[-few:]) / few
        rows.append([name, f"{ends[0]:.2f}", f"{ends[1]:.2f}", f"{curve[-1][0]:,.0f}"])
    table = Table(*rows[0], box=None)
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    tables = {"Ways": rows, **{f"Steps: {name}": step_rows(live_figures(run.store)) for name, run in runs.items()}}
    verdict = f"A model of two layers learns sums with a calculator, {scenario.steps} steps of GRPO."
    chart.save(folder / "reward.svg")
    write_text(
        folder / "report.html", live_page(scenario.name, verdict, {"Reward": chart_boxes([chart], "one")}, tables)
    )
    say(f"written to {folder}")


def rewards(run: GrpoRun) -> Curve:
    """The mean reward of each step's samples, by the second at which the step was trained."""
    trained = {step.step: step.trained for step in live_figures(run.store).steps}
    rows = [row for _, row in json_lines(run.folder / "rewards.jsonl", None)]
    found = {int(row["step"]): float(row["mean_reward"]) for row in rows}
    return [(trained[step], value) for step, value in sorted(found.items()) if step in trained]
