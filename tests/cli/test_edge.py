"""The edge of the program: whatever a user types, closes or kills, it is one line and an exit code."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from steelyard.cli import app, main
from steelyard.cli.edge import guarded
from steelyard.errors import UserError
from steelyard.files.partial import PREFIX
from steelyard.files.swap import UNFINISHED
from steelyard.sim import Result

PROGRAM = str(Path(sys.executable).parent / "steelyard")
SCENARIO: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h100"},
    "workload": {"arrivals": {"kind": "poisson", "rate": 5}, "requests": 5, "prompt": 100, "output": 10},
}
POSTTRAIN: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 2, "group": 2},
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"dp": 2},
    "steps": 1,
}


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a scenario of each kind, and crash reports elsewhere."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "reports").mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "reports"))
    Path("good.yaml").write_text(yaml.safe_dump(SCENARIO))
    Path("train.yaml").write_text(yaml.safe_dump(POSTTRAIN))
    return work


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program's own entry point, in this process."""

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["steelyard", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), printed.out, printed.err)

    return call


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def assert_one_line(done: Outcome, *told: str) -> None:
    assert done.code == 2, done
    assert done.err.startswith("error: ") and done.err.count("\n") == 1 and done.err.endswith("\n"), done.err
    for part in told:
        assert part in done.err


# -- outputs that are not files -----------------------------------------------------------------------------------

OUTPUTS = {
    "fidelity": ["fidelity", ".", "--out", "{}"],
    "calibrate": ["calibrate", ".", "--out", "{}"],
    "validate": ["validate", ".", "--report", "{}"],
    "validate silicon": ["validate", "--silicon", "--report", "{}"],
    "compare page": ["compare", "train.yaml", "--page", "{}"],
    "compare": ["compare", "train.yaml", "--out", "{}"],
    "profile": ["profile", "{}"],
    "simulate": ["simulate", "good.yaml", "--out", "{}"],
    "simulate again": ["simulate", "good.yaml", "--overwrite", "--out", "{}"],
    "posttrain": ["posttrain", "train.yaml", "--out", "{}"],
    "posttrain log": ["posttrain", "train.yaml", "--log", "--overwrite", "--out", "{}"],
}


def placed(kind: str) -> Path:
    path = Path("target.md")
    match kind:
        case "device":
            try:
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except OSError:
                pytest.skip("device nodes cannot be made here")
        case "pipe":
            os.mkfifo(path)
        case "link":
            Path("victim").write_text("mine")
            path.symlink_to("victim")
        case "dead link":
            path.symlink_to("nowhere")
    return path


@pytest.mark.parametrize("kind", ["device", "pipe", "link", "dead link"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_an_output_that_is_no_file_stays_what_it_is(run: Run, folder: Path, output: str, kind: str) -> None:
    """Devices were replaced by files; as root, /dev/null was destroyed."""
    path = placed(kind)
    before, inode = names(folder), path.lstat().st_ino
    done = run(*(each.format(path) for each in OUTPUTS[output]))
    assert_one_line(done, "target.md")
    assert names(folder) == before and path.lstat().st_ino == inode
    assert kind != "link" or Path("victim").read_text() == "mine"


@pytest.mark.parametrize("output", [name for name in OUTPUTS if name.split()[0] not in ("simulate", "posttrain")])
def test_an_output_that_is_a_folder_stays(run: Run, folder: Path, output: str) -> None:
    target = Path("target.md")
    (target / ("results.jsonl" if output == "compare" else "x")).mkdir(parents=True)
    before = names(folder)
    assert_one_line(run(*(each.format(target) for each in OUTPUTS[output])), "target.md")
    assert names(folder) == before


@pytest.mark.parametrize("path", ["x" * 5000, "x/" * 2500, "good.yaml/below", "/proc/nobody/writes", "a\0b"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_an_impossible_output_is_one_line(run: Run, folder: Path, output: str, path: str) -> None:
    before = names(folder)
    done = run(*(each.format(path) for each in OUTPUTS[output]))
    if "\0" not in path:  # which is typer's to refuse
        assert_one_line(done)
    assert done.code == 2 and len(done.err) < 700 and names(folder) == before


@pytest.mark.parametrize("name", ["summary.json.part", "events.jsonl", "summary.json", "timeline.svg"])
def test_links_placed_before_a_run_are_not_written_through(run: Run, folder: Path, name: str) -> None:
    """post-training followed both of the first."""
    victim = folder / "victim"
    victim.write_text("mine")
    (folder / "out").mkdir()
    (folder / "out" / name).symlink_to("../victim")
    done = run("posttrain", "train.yaml", "--log", "--overwrite", "--out", "out")
    assert victim.read_text() == "mine" and (folder / "out" / name).is_symlink()
    assert done.code == (0 if name.endswith(".part") else 2)


def test_a_page_named_json_would_be_its_own_figures(run: Run) -> None:
    assert_one_line(run("compare", "train.yaml", "--page", "page.json"), "--page page.json", "another name")


# -- standard output ----------------------------------------------------------------------------------------------


class Refusing(io.RawIOBase):
    """A standard output that cannot be written, whether at once or when it is flushed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        return len(data)


PRINTING = [
    *(["--help"], ["--version"], ["simulate", "--help"], ["gpus"], ["models"], ["schema"]),
    ["simulate", "good.yaml", "--out", "out", "--no-intervals"],
    ["simulate", "good.yaml", "--out", "out", "--no-intervals", "--json"],
    ["posttrain", "train.yaml", "--out", "out"],
    ["posttrain", "train.yaml", "--out", "out", "--json"],
    ["plan", "train.yaml", "--set", "planner=search", "--json"],
]


@pytest.mark.parametrize("number", [28, 32], ids=["full", "closed"])
@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_standard_output_that_cannot_be_written_is_one_line(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], buffered: bool, number: int
) -> None:
    refusing = Refusing(number)
    buffer: Any = io.BufferedWriter(refusing, 1 << 20 if buffered else 1)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, write_through=not buffered))
    monkeypatch.setattr(sys, "argv", ["steelyard", *arguments])
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    with pytest.raises(SystemExit) as stop:
        main()
    assert_one_line(Outcome(int(stop.value.code or 0), "", errors.getvalue()), "standard output", os.strerror(number))
    assert not [name for name in names(folder) if PREFIX in name]
    refusing.number = 0  # for what is left in its buffer


def test_a_standard_output_that_is_closed_meanwhile_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    assert guarded(lambda arguments: sys.stdout.close(), []) == 2
    assert_one_line(Outcome(2, "", capsys.readouterr().err), "standard output", "closed")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_program_itself_survives_what_it_prints_to(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, "gpus"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert_one_line(Outcome(done.returncode, "", done.stderr), "standard output")
    closed = subprocess.run(f"{PROGRAM} gpus >&-", shell=True, capture_output=True, text=True, timeout=60)
    assert closed.returncode in (0, 2) and "Traceback" not in closed.stderr
    with open("/dev/full", "w") as full:
        lost = subprocess.run([PROGRAM, "simulate", "absent.yaml"], stderr=full, timeout=60)
    assert lost.returncode == 2


# -- internal errors ----------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[list[str]], None]:
    def run(arguments: list[str]) -> None:
        raise error

    return run


def endless(arguments: list[str]) -> None:
    endless(arguments)


INTERNAL = {
    "KeyError": raising(KeyError("x")),
    "AssertionError": raising(AssertionError()),
    "RecursionError": endless,
    "out of memory": raising(MemoryError()),
    "RuntimeError": raising(RuntimeError("\x1b[31m" + "long " * 1000)),
    "UnicodeEncodeError": raising(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "half")),
    "ExceptionGroup": raising(ExceptionGroup("several", [ValueError(), KeyError()])),
}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("kind", INTERNAL)
def test_an_internal_error_is_one_line_and_a_report(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str, debug: bool
) -> None:
    arguments = ["simulate", "a b", "\x1b[31m", *(["--debug"] if debug else [])]
    assert guarded(INTERNAL[kind], arguments) == 70
    told = capsys.readouterr().err
    assert ("Traceback" in told) == debug
    *_, line = told.splitlines()
    assert line.startswith("error: internal error: ") and kind in line and line.isprintable()
    (report,) = (folder.parent / "reports").iterdir()
    assert str(report) in line and stat.S_IMODE(report.stat().st_mode) == 0o600
    text = report.read_text()
    assert "Traceback" in text and "steelyard 0." in text and "'a b'" in text and "\x1b" not in text.splitlines()[1]


def test_a_report_that_cannot_be_written_changes_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nobody")
    assert guarded(raising(KeyError("x")), []) == 70
    assert "no report of it could be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (UserError("one", "two"), 2, "error: one\ntwo\n"),
        (FileNotFoundError(2, "No such file or directory", "x\n" + "y" * 300), 2, None),
        (OSError("odd"), 2, "error: odd\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
    ],
)
def test_other_ends(capsys: pytest.CaptureFixture[str], error: BaseException, code: int, told: str | None) -> None:
    assert guarded(raising(error), []) == code
    shown = capsys.readouterr().err
    assert shown == told if told is not None else shown.startswith("error: x\\nyyy") and shown.count("\n") == 1


def test_without_arguments_the_help_is_shown(run: Run) -> None:
    done = run()
    assert "Commands:\n  simulate " in done.out + done.err


def test_debug_may_stand_anywhere_and_is_no_value(run: Run) -> None:
    assert run("--debug", "simulate", "absent.yaml").err == run("simulate", "absent.yaml", "--debug").err
    assert "--debug" in run("simulate", "--", "--debug").err


def test_signals_are_handled_only_while_the_program_runs() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert guarded(lambda arguments: os.kill(os.getpid(), signal.SIGTERM), []) == 130
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_an_interrupt_while_a_module_is_imported_is_no_internal_error(folder: Path) -> None:
    """Python 3.11 makes a RuntimeError of what is raised while a class gets its attributes."""

    class Interrupting:
        def __set_name__(self, owner: type, name: str) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    def make(arguments: list[str]) -> None:
        type("Made", (), {"name": Interrupting()})

    assert guarded(make, []) == 130
    assert guarded(raising(RuntimeError("x")), []) == 70


def test_an_interrupt_that_python_cannot_raise_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    """In a finalizer it was printed and lost, and the program went on."""

    class Interrupting:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

    def work(arguments: list[str]) -> None:
        Interrupting()
        time.sleep(20)
        raise AssertionError("it went on")

    assert guarded(work, []) == 130 and capsys.readouterr().err == ""


def test_other_errors_in_finalizers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Failing:
        def __del__(self) -> None:
            raise ValueError("x")

    def work(arguments: list[str]) -> None:
        Failing()

    assert guarded(work, []) == 0 and [each.exc_type for each in told] == [ValueError]


def test_signals_that_come_together_do_not_disturb_the_cleaning_up() -> None:
    cleaned = []

    def work(arguments: list[str]) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            cleaned.append(True)

    assert guarded(work, []) == 130 and cleaned


# -- text ---------------------------------------------------------------------------------------------------------

NASTY = ["r[/y]", "[bold]x", ":smile:", "a b", "\x1b[31mred", "x\ry", "\u202eabc", "ü\x9b", "'q'", "%s{}"]


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("command", ["simulate", "posttrain"])
def test_names_are_shown_not_obeyed(run: Run, folder: Path, command: str, name: str) -> None:
    file = {"simulate": "good.yaml", "posttrain": "train.yaml"}[command]
    more = ["--no-intervals"] if command == "simulate" else []
    done = run(command, file, "--out", f"out/{name}", *more)
    assert done.code == 0 and (folder / "out" / name / "summary.json").exists()
    assert all(line.isprintable() for line in done.out.split("\n"))
    assert name not in done.out or name.isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "{}"],
        ["simulate", "good.yaml", "--set", "{}"],
        ["simulate", "good.yaml", "--set", "name={}", "--set", "fleet.gpu={}"],
        ["simulate", "good.yaml", "{}"],
        ["simulate", "--{}"],
        ["{}"],
        ["compare", "train.yaml", "--routers", "{}"],
        ["compare", "train.yaml", "--scale", "{}"],
        ["compare", "train.yaml", "--workers", "{}"],
        ["estimator-eval", "{}"],
        ["replay", "{}"],
        ["parity", "{}"],
        ["validate", "{}"],
        ["calibrate", "{}", "--out", "x"],
        ["fidelity", "{}", "--out", "x"],
        ["plan", "{}"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("given", ["\x1b[31mred\x07", "x" * 5000, "a b " * 1000, "'" * 500, "\udcff", "\n\n"])
def test_what_was_typed_is_quoted_in_part_and_escaped(run: Run, folder: Path, arguments: list[str], given: str) -> None:
    before = names(folder)
    done = run(*(each.format(given) for each in arguments))
    assert done.code == 2 and "internal error" not in done.err and names(folder) == before
    assert all(line.isprintable() for line in done.err.split("\n")), done.err
    assert (len(done.err) < 2500 and given.strip()[:201] not in done.err) or len(given) < 201


def test_folders_beyond_ascii_under_an_ascii_locale(folder: Path) -> None:
    (folder / "ü").mkdir()
    (folder / "good.yaml").rename(folder / "ü" / "gü.yaml")
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [PROGRAM, "simulate", "ü/gü.yaml", "--out", "ü/out", "--no-intervals", "--set", "seed=3"]
    done = subprocess.run(command, env=env, capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout.isascii() and done.stderr == b""
    assert json.loads((folder / "ü" / "out" / "summary.json").read_text(encoding="utf-8"))["name"] == "gü"


def test_typer_s_own_runner_sees_user_errors(folder: Path) -> None:
    done = CliRunner().invoke(app, ["simulate", "absent.yaml"])
    assert isinstance(done.exception, UserError)


# -- kills --------------------------------------------------------------------------------------------------------

WORK_FOR_EVER = """
import sys, time
import steelyard.posttrain.compare as compare
from steelyard.cli import main
compare.figures_of = lambda scenario: time.sleep(60)
main()
"""
TRAIN_FOR_EVER = """
import sys, time
import steelyard.cli.posttrain as command
from steelyard.cli import main
def posttrain(loaded, progress, journal):
    journal._file.write("begun\\n"); journal._file.flush()
    print("running", flush=True)
    time.sleep(60)
command.posttrain = posttrain
main()
"""


def children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def until(what: Callable[[], bool]) -> bool:
    for _ in range(200):
        if what():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def started(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the program with something in it replaced; it is ended in any case."""
    processes: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *arguments]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(
    started: Callable[..., subprocess.Popen[str]], folder: Path, number: signal.Signals
) -> None:
    """They lived on, and worked for nobody."""
    (folder / "other.yaml").write_text(yaml.safe_dump({**POSTTRAIN, "seed": 2}))
    process = started(WORK_FOR_EVER, "compare", "train.yaml", "other.yaml", "--workers", "2", "--out", "out")
    assert until(lambda: len(children(process.pid)) == 2)
    workers = children(process.pid)
    process.send_signal(number)
    process.wait(timeout=20)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    assert until(lambda: not any(map(lives, workers)))
    if number != signal.SIGKILL:
        assert names(folder) - {"out", "out/results.jsonl"} == {"good.yaml", "train.yaml", "other.yaml"}  # kept results


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_log_of_a_run_that_was_ended_is_not_left_beside_an_earlier_summary(
    started: Callable[..., subprocess.Popen[str]], run: Run, folder: Path, number: signal.Signals, earlier: bool
) -> None:
    if earlier:
        assert run("posttrain", "train.yaml", "--out", "out").code == 0
    before = names(folder)
    process = started(TRAIN_FOR_EVER, "posttrain", "train.yaml", "--log", "--overwrite", "--out", "out")
    assert process.stdout is not None and process.stdout.readline() == "running\n"
    process.send_signal(number)
    process.wait(timeout=20)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    if number == signal.SIGKILL:
        assert {name for name in names(folder) if PREFIX not in name} == before
        assert run("posttrain", "train.yaml", "--overwrite", "--out", "out").code == 0
        assert not [name for name in names(folder) if PREFIX in name]
    else:
        assert names(folder) == before


DIE_AT_A_MOVE = """
import os, signal, sys
from steelyard.cli import main
from steelyard.files.swap import UNFINISHED
rename, left = os.rename, int(sys.argv.pop(1))
def counted(one, other):
    global left
    if UNFINISHED in os.fspath(one):
        left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(one, other)
os.rename = counted
main()
"""


@pytest.mark.parametrize("moves", [0, 2])
def test_a_result_is_whole_if_its_run_is_killed_while_it_replaces_an_earlier_one(
    started: Callable[..., subprocess.Popen[str]], run: Run, folder: Path, moves: int
) -> None:
    """The folder had no summary then."""
    command = ("simulate", "good.yaml", "--no-intervals", "--overwrite", "--out", "out", "--set")
    assert run(*command, "workload.requests=9").code == 0
    process = started(DIE_AT_A_MOVE, str(moves), *command, "workload.requests=7")
    assert process.wait(timeout=60) == -signal.SIGKILL and UNFINISHED in names(folder / "out")
    found = Result.load("out")
    assert found.summary.requests == len(found.requests["arrival"]) == 7
    assert UNFINISHED not in names(folder / "out")


# -- the recorder's entry point -----------------------------------------------------------------------------------


def test_the_recorder_loads_nothing_unless_it_is_asked_to_record() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from importlib.metadata import entry_points\n"
        "(entry,) = entry_points(group='vllm.general_plugins', name='steelyard_recorder')\n"
        "entry.load()()\n"
        "print(*(name for name in set(sys.modules) - before if name.split('.')[0] not in sys.stdlib_module_names))"
    )
    env = {name: value for name, value in os.environ.items() if name != "STEELYARD_RECORD"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    own = {"steelyard", "steelyard.errors", "steelyard.lazy", "steelyard.quoting"}
    assert set(done.stdout.split()) == {*own, "steelyard.profile", "steelyard.profile.recorder"}
