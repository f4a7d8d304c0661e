"""A case from a random number: which command, which of its inputs is attacked, and how."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tools.fuzz import mutate, seeds
from tools.fuzz.case import Case, Content
from tools.fuzz.scenarios import scenario, setting, small_posttrain, small_serving, tiny_posttrain, to_yaml
from tools.fuzz.values import hostile_number, hostile_text

Files = dict[str, Content]
Maker = Callable[[Random], Case]

_COMPARED = ("--no-rivals", "--modes", "split", "--routers", "sticky", "--estimators", "suffix", "--planners", "given")
_COMPARED_LESS = (*_COMPARED, "--tails", "none", "--pools", "none")


def case(r: Random) -> Case:
    """Any case. Heavier kinds come less often."""
    makers = list(MAKERS)
    return MAKERS[r.choices(makers, [WEIGHTS[name] for name in makers])[0]](r)


def _out(r: Random) -> tuple[list[str], Files]:
    """Where a run is to write: mostly a new folder, sometimes a place that cannot be written to. Never outside the
    case's own folder."""
    chance = r.random()
    if chance < 0.75:
        return ["--out", "out"], {}
    if chance < 0.8:
        return [], {}
    if chance < 0.85:
        files = {"old/summary.json": Content(b"{}"), "old/mine.txt": Content(b"keep")}
        return ["--out", "old", *(["--overwrite"] if r.random() < 0.5 else [])], files
    kind = r.choice(("device", "fifo", "link", "file", "folder"))
    files = {"taken": Content(b"elsewhere" if kind == "link" else b"", kind=kind)}
    if chance < 0.92:
        return ["--out", r.choice(("taken", "taken/x", "taken/x/y"))], files
    return ["--out", _inside(hostile_text(r))], {}


def _inside(name: str) -> str:
    """A name that cannot lead out of the folder."""
    return name.replace("..", "dots").lstrip("/") or "empty"


def _simulate(r: Random) -> Case:
    options, files = _out(r)
    text = to_yaml(scenario(r, posttrain=False))
    return _scenario_case("simulate", "scenario", text, r, [*options, "--no-intervals", "--check"], files)


def _capacity(r: Random) -> Case:
    text = to_yaml(_limited(scenario(r, False, _limited(small_serving(r)))))
    questions: tuple[list[str], ...] = (
        [],
        ["--rate", str(hostile_number(r)) if r.random() < 0.5 else "20"],
        ["--ratio"],
        ["--break-even", r.choice(("serve=h200", "serve=h20", "decode=h20", "serve", "=", hostile_text(r)))],
        ["--tornado"],
    )
    return _scenario_case("capacity", "scenario", text, r, [*r.choice(questions), "--seeds", "0", "--no-costs"], {})


def _limited(written: Any) -> Any:
    """A scenario with a limit, where it may have one."""
    if isinstance(written, dict) and not written.get("slo"):
        written = {**written, "slo": {"ttft_p95": 1.0}}
    return written


def _sweep(r: Random) -> Case:
    written = small_serving(r)
    options, files = _out(r)
    options = [word for word in options if word != "--overwrite"]
    for _ in range(r.choice((1, 1, 2))):
        chance = r.random()
        if chance < 0.5:
            axis = r.choice(("fleet.tp=1,2", "seed=1:3:3", "engine.max_num_seqs=8:64:3:log", "fleet.gpu=h100,h200"))
        else:
            key, equals, value = setting(written, r, False).partition("=")
            other = hostile_text(r) if r.random() < 0.5 else str(hostile_number(r))
            axis = f"{key}{equals}{value}{r.choice((',', ':', ',,', ':2:', '', '=[,'))}{other}"
        options += ["--over", axis]
    if r.random() < 0.3:
        lines = b'{"journal":"sweep of s (000000000000)"}\n{"key":"a","row":{"gpus":1}}\n'
        files["out/journal.jsonl"] = mutate.content(_changed_lines(lines, r), r)
    return Case(("sweep", "s.yaml", *options), {"s.yaml": Content(to_yaml(written)), **files}, "options")


def _search(r: Random) -> Case:
    written = small_serving(r)
    written.pop("fleet", None)
    written["search"] = {
        "gpus": r.choice((1, 2, 4, hostile_number(r))),
        "seconds": r.choice((0.1, 0.5, 1)),
        "requests": r.choice((1, 5, 10)),
        "serve": {"gpu": r.choice((["h100"], "a100", "h20")), "tp": r.choice(([1, 2], 1, 3))},
    }
    if r.random() < 0.3:
        written["search"]["objective"] = r.choice(("cost", "per-gpu", "per-dollar", "nothing"))
    changed = written if r.random() < 0.4 else mutate.json_value(written, r)
    options = ["--out", "out", "--workers", "1", *(["--no-sure"] if r.random() < 0.7 else [])]
    return Case(("search", "s.yaml", *options), {"s.yaml": Content(to_yaml(changed))}, "scenario")


def _posttrain(r: Random) -> Case:
    options, files = _out(r)
    text = to_yaml(scenario(r, posttrain=True))
    extra = ["--log"] if r.random() < 0.2 else []
    return _scenario_case("posttrain", "scenario", text, r, [*options, *extra, "--check"], files)


def _plan(r: Random) -> Case:
    text = to_yaml(scenario(r, posttrain=True))
    model = r.choice(("search", "libra", "proportional", "one-at-a-time"))
    options = ["--set", f"planner={model}"]
    if r.random() < 0.2:
        options += ["--steps-per-day", str(hostile_number(r)) if r.random() < 0.5 else "50"]
    files: Files = {}
    if r.random() < 0.3:
        written, files = _out(r)
        target = r.choice(("verl", "slime", "vllm", "sglang")) if r.random() < 0.9 else hostile_text(r)
        options += ["--to", target, *(word for word in written if word != "--overwrite")]
    return _scenario_case("plan", "scenario", text, r, options, files)


def _emulate(r: Random) -> Case:
    text = to_yaml(scenario(r, posttrain=False))
    options = ("--port", "--speed", "--name")
    return Case(("emulate", "s.yaml", *_nowhere(r, options)), {"s.yaml": Content(text)}, "scenario")


def _emit(r: Random) -> Case:
    after = r.random() < 0.3
    target = r.choice(("verl", "slime") if after else ("vllm", "sglang", "dynamo", "kserve"))
    if r.random() < 0.05:
        target = hostile_text(r)
    options, files = _out(r)
    options = [word for word in options if word != "--overwrite"]
    text = to_yaml(scenario(r, posttrain=after))
    return Case(("emit", "s.yaml", "--to", target, *options), {"s.yaml": Content(text), **files}, "scenario")


def _import(r: Random) -> Case:
    """A deployment, with its text changed."""
    kind, text = r.choice(list(seeds.DEPLOYMENTS.items()))
    for _ in range(r.choice((0, 1, 1, 2, 3))):
        text = r.choice((mutate.yaml_text, mutate.raw))(text, r)
    options = ["--gpu", r.choice(("h200", "h200", "b200", hostile_text(r)))]
    if r.random() < 0.3:
        options += ["--replicas", str(hostile_number(r))]
    if r.random() < 0.3:
        options += ["--name", hostile_text(r)]
    if r.random() < 0.5:
        options += ["--out", r.choice(("new.yaml", "a/new.yaml", "source"))]
    return Case(("import", kind, "source", *options), {"source": mutate.content(text, r)}, "deployment")


def _gateway(r: Random) -> Case:
    addresses = ("http://203.0.113.9:1", "https://203.0.113.9", "http://[::", "ftp://x", "http://x:99999", "//")
    engines = [r.choice(addresses) if r.random() < 0.7 else hostile_text(r) for _ in range(r.choice((0, 1, 1, 2)))]
    options = _nowhere(r, ("--port", "--router", "--rate", "--most-mb", "--certificate", "--key", "--log"))
    files: Files = {}
    if r.random() < 0.5:
        options += ["--tokens", "tokens"]
        files["tokens"] = mutate.content(_changed_lines(b"client abc\nengine def\noperator ghi\n", r), r)
    return Case(("gateway", *engines, *options), files, "options")


def _ui(r: Random) -> Case:
    """A folder that is none, so that nothing is served."""
    folder = r.choice(("s.yaml", "nothing", "/dev/null", "fifo", f"nothing/{_inside(hostile_text(r))}"))
    options = ["--port", str(hostile_number(r))] if r.random() < 0.5 else []
    files = {"s.yaml": Content(b"model: x"), "fifo": Content(kind="fifo")}
    return Case(("ui", folder, "--no-browser", *options), files, "options")


def _advise(r: Random) -> Case:
    """A trace and options of `advise`, each attacked at times; a few requests on a small fleet."""
    name, seed = r.choice(list(seeds.TRACES.items()))
    text = _changed_lines(seed, r) if r.random() < 0.5 else seed
    said = {**small_serving(r), "slo": r.choice(({"ttft_p95": 5.0}, {"tpot_p90": 0.1, "ttft": 1.0}, {}))}
    options = ["--policies", r.choice(("none", "none,reactive", "ours", hostile_text(r))), "--max", "2"]
    for option in r.sample(("--min", "--max", "--speed", "--from", "--to", "--startup"), k=r.choice((0, 1, 2))):
        options += [option, str(hostile_number(r))]
    files = {"s.yaml": Content(to_yaml(said)), name: mutate.content(text, r)}
    return Case(("advise", name, "--fleet", "s.yaml", *options), files, "trace")


def _nowhere(r: Random, options: tuple[str, ...]) -> list[str]:
    """Options of a server. It cannot listen at its address, so it never serves."""
    found = ["--host", r.choice(("203.0.113.9", "203.0.113.9", "nowhere.invalid", hostile_text(r) + ".invalid"))]
    for option in r.sample(options, k=r.choice((0, 0, 1, 2))):
        found += [option, hostile_text(r) if r.random() < 0.3 else str(hostile_number(r))]
    return found


def _scenario_case(command: str, label: str, text: bytes, r: Random, options: list[str], files: Files) -> Case:
    if r.random() < 0.1:
        options.append("--json")
    return Case((command, "s.yaml", *options), {"s.yaml": Content(text), **files}, label)


def _yaml(r: Random) -> Case:
    """The text of a scenario rather than its values."""
    after = r.random() < 0.5
    text = to_yaml((small_posttrain if after else small_serving)(r))
    for _ in range(r.choice((1, 1, 2))):
        text = r.choice((mutate.yaml_text, mutate.yaml_text, mutate.raw))(text, r)
    options = ("--out", "out") if after else ("--out", "out", "--no-intervals", "--check")
    return Case(("posttrain" if after else "simulate", "s.yaml", *options), {"s.yaml": mutate.content(text, r)}, "yaml")


def _set(r: Random) -> Case:
    after = r.random() < 0.5
    written = (small_posttrain if after else small_serving)(r)
    options = [word for _ in range(r.choice((1, 1, 2))) for word in ("--set", setting(written, r, after))]
    options += ["--out", "out", "--check"] if after else ["--out", "out", "--no-intervals", "--check"]
    return Case(
        ("posttrain" if after else "simulate", "s.yaml", *options), {"s.yaml": Content(to_yaml(written))}, "set"
    )


def _config(r: Random) -> Case:
    """A model's config.json."""
    config = r.choice(list(seeds.configs().values()))
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        config = mutate.json_value(config, r)
    text = mutate.dumped(config)
    if r.random() < 0.15:
        text = mutate.raw(text, r)
    after = r.random() < 0.2
    written = (small_posttrain if after else small_serving)(r)
    written["model"] = "./config.json"
    if not after and r.random() < 0.7:
        written["fleet"] = {"gpu": "h200", "tp": r.choice((1, 2, 8))}
    files = {"s.yaml": Content(to_yaml(written)), "config.json": mutate.content(text, r)}
    options = ("--out", "out") if after else ("--out", "out", "--no-intervals", "--check")
    return Case(("posttrain" if after else "simulate", "s.yaml", *options), files, "config")


def _trace(r: Random) -> Case:
    name, text = r.choice(list(seeds.TRACES.items()))
    text = _changed_lines(text, r)
    gzipped = r.random() < 0.2
    name = f"{name}.gz" if gzipped else name
    written = {"model": "llama-3.1-8b", "fleet": {"gpu": "h100"}, "cost": {"source": "analytic"}}
    trace: dict[str, object] = {"file": name}
    if r.random() < 0.3:
        trace["format"] = r.choice(("azure", "mooncake", "vllm-bench", "capture", "gateway", "auto"))
    workload: dict[str, object] = {"trace": trace}
    if r.random() < 0.3:
        workload["arrivals"] = r.choice(({"kind": "trace"}, {"kind": "poisson", "rate": 3}, {"kind": "burst"}))
    written["workload"] = workload
    files = {"s.yaml": Content(to_yaml(written)), name: mutate.content(text, r, gzipped)}
    return Case(("simulate", "s.yaml", "--out", "out", "--no-intervals", "--check"), files, "trace")


def _changed_lines(text: bytes, r: Random) -> bytes:
    for _ in range(r.choice((0, 1, 1, 1, 2, 3))):
        text = (mutate.lines if r.random() < 0.85 else mutate.raw)(text, r)
    return text


def _trajectories(r: Random) -> Case:
    text = _changed_lines(r.choice((seeds.TRAJECTORIES, seeds.SESSIONS, seeds.SWE)), r)
    gzipped = r.random() < 0.2
    name = "tj.jsonl.gz" if gzipped else "tj.jsonl"
    files = {name: mutate.content(text, r, gzipped)}
    if r.random() < 0.5:
        options = r.choice(((), ("--json",), ("--folds", "2"), ("--folds", r.choice(("0", "-1", "99999999999", "x")))))
        return Case(("estimator-eval", name, *options), files, "trajectories")
    written = small_posttrain(r)
    written["trajectories"] = {"file": name, "prompts": r.choice((1, 2, 4)), "group": r.choice((1, 2, 4))}
    files["s.yaml"] = Content(to_yaml(written))
    return Case(("posttrain", "s.yaml", "--out", "out", "--check"), files, "trajectories")


def _bundle(r: Random) -> Case:
    rows = seeds.bundle().splitlines(keepends=True)
    if r.random() < 0.5:
        rows = rows[: r.choice((1, 2, 10, 100, len(rows)))]
    if r.random() < 0.3:
        rows = rows[:1] + rows[1 :: r.choice((2, 10, 100))]
    text = _changed_lines(b"".join(rows), r)
    gzipped = r.random() < 0.3
    name = "p.jsonl.gz" if gzipped else "p.jsonl"
    written = small_serving(r)
    written["fleet"] = {"gpu": "h200", "tp": r.choice((1, 1, 2))}
    written["cost"] = {"profile": f"./{name}"}
    files = {"s.yaml": Content(to_yaml(written)), name: mutate.content(text, r, gzipped)}
    return Case(("simulate", "s.yaml", "--out", "out", "--no-intervals", "--check"), files, "bundle")


def _calibration(r: Random) -> Case:
    text = mutate.dumped(mutate.json_value(json.loads(seeds.CALIBRATION), r))
    text = mutate.raw(text, r) if r.random() < 0.2 else text
    written = small_serving(r)
    written["cost"] = {"source": "analytic", "calibration": "./c.json"}
    files = {"s.yaml": Content(to_yaml(written)), "c.json": mutate.content(text, r)}
    return Case(("simulate", "s.yaml", "--out", "out", "--no-intervals", "--check"), files, "calibration")


def _capture(r: Random) -> Case:
    files: Files = {}
    attacked = r.choice(list(seeds.capture_files()))
    for name, text in seeds.capture_files().items():
        gzipped = name.endswith(".gz")
        files[f"other/{name}"] = Content(text, gzipped=gzipped)
        if name != attacked:
            files[f"cap/{name}"] = Content(text, gzipped=gzipped)
        elif r.random() < 0.95:
            text = mutate.dumped(mutate.json_value(json.loads(text), r)) if name.endswith(".json") else text
            files[f"cap/{name}"] = mutate.content(_changed_lines(text, r), r, gzipped)
    command = r.choice(
        (
            ("validate", "cap"),
            ("validate", "cap", "--json", "--given-cache"),
            ("validate", "cap", "--report", "page.html"),
            ("validate", "cap", "--against", "other"),
            ("validate", "other", "--against", "cap", "--json"),
            ("calibrate", "cap", "--out", "c.json"),
            ("fidelity", "cap", "--out", "f.md"),
            ("fidelity", "cap", "--ablate", "--out", "f.md"),
        )
    )
    return Case(command, files, "capture")


def _golden(r: Random) -> Case:
    text = _changed_lines(seeds.decisions(), r)
    return Case(
        ("parity", "g.jsonl", *(("--plain",) if r.random() < 0.2 else ())),
        {"g.jsonl": mutate.content(text, r)},
        "golden",
    )


def _events(r: Random) -> Case:
    command = r.choice(("replay", "explain"))
    if r.random() < 0.2:
        return Case((command, "store"), {"store": mutate.content(mutate.raw(seeds.store(), r), r)}, "store")
    text = _changed_lines(seeds.events(), r)
    return Case((command, "e.jsonl"), {"e.jsonl": mutate.content(text, r)}, "events")


def _compare(r: Random) -> Case:
    written = tiny_posttrain(r)
    files: Files = {"s.yaml": Content(to_yaml(scenario(r, True, written) if r.random() < 0.6 else written))}
    if r.random() < 0.5:
        row = {"digest": "0" * 24, "tokens_per_second": 1.0}
        files["c/results.jsonl"] = mutate.content(mutate.lines(mutate.dumped(row) + b"\n", r), r)
    options = [*_COMPARED_LESS, "--out", "c"]
    if r.random() < 0.2:
        options += ["--scale", r.choice(("0", "2", "x", "nan", "inf", "1e-300", ",", "0.5,0.5", "0.25"))]
    return Case(("compare", "s.yaml", *options), files, "scenario")


def _compare_serving(r: Random) -> Case:
    """Scenarios of serving, and a result folder whose files may be anything."""
    written = small_serving(r)
    other = scenario(r, False, written) if r.random() < 0.6 else small_serving(r)
    files: Files = {"a.yaml": Content(to_yaml(written)), "b.yaml": Content(to_yaml(other))}
    given = ["a.yaml", "b.yaml"]
    if r.random() < 0.4:
        given.insert(r.choice((0, 1, 2)), "run")
        files["run/summary.json"] = mutate.content(mutate.dumped(mutate.json_value({"name": "x", "ttft": {}}, r)), r)
        files["run/scenario.json"] = mutate.content(mutate.dumped(mutate.json_value(written, r)), r)
    options = ["--seeds", r.choice(("1", "2", "2", "3"))]
    options += [word for word in ("--costs", "--json") if r.random() < 0.2]
    options += ["--page", r.choice(("p.html", "a.yaml", "run", "run/summary.json"))] if r.random() < 0.3 else []
    return Case(("compare", *given, *options), files, "scenario")


_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "simulate": ("--out", "--set", "--workers", "--trace", "--json", "--overwrite", "--intervals"),
    "capacity": ("--set", "--rate", "--ratio", "--break-even", "--tornado", "--page", "--seeds", "--workers", "--json"),
    "sweep": ("--over", "--set", "--out", "--workers", "--capacity", "--json"),
    "posttrain": ("--out", "--set", "--log", "--json", "--overwrite"),
    "plan": ("--set", "--steps-per-day", "--to", "--out", "--json"),
    "compare": (
        "--out",
        "--set",
        "--modes",
        "--routers",
        "--estimators",
        "--planners",
        "--tails",
        "--pools",
        "--steps",
        "--scale",
        "--seeds",
        "--costs",
        "--workers",
        "--page",
    ),
    "emit": ("--to", "--out", "--set"),
    "import": ("--gpu", "--replicas", "--name", "--out"),
    "parity": ("--plain",),
    "validate": (
        "--gpu",
        "--profile",
        "--trace",
        "--calibration",
        "--report",
        "--given-cache",
        "--silicon",
        "--against",
    ),
    "calibrate": ("--out", "--gpu"),
    "fidelity": ("--out", "--ablate"),
    "replay": ("--what-if", "--scenario", "--set"),
    "explain": ("--trajectory", "--step", "--last", "--json", "--timeline"),
    "control": ("--out", "--set", "--speed", "--address", "--host", "--tokens", "--metrics", "--resume"),
    "estimator-eval": ("--estimator", "--folds", "--json"),
    "profile": ("--minutes",),
    "schema": ("--posttrain",),
    "models": (),
    "gpus": (),
}
_PATHS = (
    "s.yaml",
    "nothing.yaml",
    "folder",
    "/dev/zero",
    "/dev/null",
    "/proc/self/mem",
    "fifo",
    "",
    ".",
    "~nosuchuser/x",
    "x" * 5000,
    "a\x00b",
    "r[/y].yaml",
    "\udcff",
)


def _options(r: Random) -> Case:
    """Command lines with hostile paths and values. What is written goes nowhere but into the case's folder."""
    command = r.choice(list(_OPTIONS)) if r.random() < 0.98 else hostile_text(r)
    words = [r.choice(_PATHS) for _ in range(r.choice((0, 1, 1, 1, 2)))] if command not in ("schema", "gpus") else []
    if command == "profile":
        words = [_inside(word) for word in words if not word.startswith("/")]
    after = command in ("posttrain", "plan", "compare")
    written = (tiny_posttrain if after else small_serving)(r)
    for option in r.sample(_OPTIONS.get(command, ()), k=min(len(_OPTIONS.get(command, ())), r.choice((0, 1, 1, 2)))):
        words.append(option)
        if option == "--set":
            words.append(setting(written, r, after))
        elif option in ("--out", "--page", "--report", "--timeline"):
            words.append(r.choice((_inside(hostile_text(r)), "out", "device", "fifo", "folder", "link/x", "s.yaml/x")))
        elif option not in (
            "--plain",
            "--json",
            "--overwrite",
            "--log",
            "--trace",
            "--given-cache",
            "--silicon",
            "--intervals",
            "--costs",
            "--ratio",
            "--tornado",
            "--capacity",
        ):
            words.append(hostile_text(r))
    if r.random() < 0.1:
        words.append(r.choice(("--nosuch", "--ouy", "-x", "-", "--json=3", "--set", "--help=x")))
    files: Files = {
        "s.yaml": Content(to_yaml(written)),
        "r[/y].yaml": Content(to_yaml(written)),
        "folder": Content(kind="folder"),
        "fifo": Content(kind="fifo"),
        "device": Content(kind="device"),
        "link": Content(b"nowhere", kind="link"),
    }
    if command == "compare":
        words += _COMPARED_LESS
    if command == "control":
        words += ["--on", "nowhere"]  # it must not start
    return Case((command, *words), files, "options")


MAKERS: Mapping[str, Maker] = {
    "simulate": _simulate,
    "capacity": _capacity,
    "search": _search,
    "sweep": _sweep,
    "posttrain": _posttrain,
    "plan": _plan,
    "advise": _advise,
    "emulate": _emulate,
    "emit": _emit,
    "import": _import,
    "gateway": _gateway,
    "ui": _ui,
    "yaml": _yaml,
    "set": _set,
    "config": _config,
    "trace": _trace,
    "trajectories": _trajectories,
    "bundle": _bundle,
    "calibration": _calibration,
    "capture": _capture,
    "golden": _golden,
    "events": _events,
    "compare": _compare,
    "compare-serving": _compare_serving,
    "options": _options,
}
WEIGHTS: Mapping[str, float] = {
    "simulate": 24,
    "capacity": 3,
    "search": 2,
    "sweep": 3,
    "posttrain": 14,
    "plan": 3,
    "advise": 3,
    "emulate": 1,
    "emit": 4,
    "import": 4,
    "gateway": 0.5,
    "ui": 0.3,
    "yaml": 8,
    "set": 8,
    "config": 8,
    "trace": 8,
    "trajectories": 6,
    "bundle": 2,
    "calibration": 3,
    "capture": 4,
    "golden": 4,
    "events": 4,
    "compare": 1,
    "compare-serving": 3,
    "options": 8,
}
