"""A mistake in a scenario gives one message: file, key, value, and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.scenario import load_scenario, scenario_from_dict

BASE = """\
model: llama-3.1-8b
fleet: {gpu: h100, replicas: 2}
workload:
  arrivals: {kind: poisson, rate: 10}
  requests: 100
  prompt: {kind: lognormal, median: 512, p95: 2048}
  output: 192
"""


def complaint(tmp_path: Path, text: str, name: str = "bad.yaml") -> str:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_scenario(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.replace(str(path), name)


# what is replaced in BASE, by what, and the whole message
CASES = [
    (
        "output: 192\n",
        "output: 192\nengine: {max_num_seq: 64}\n",
        "bad.yaml:8: engine.max_num_seq: unknown key; ",
    ),
    ("rate: 10", "rate: -10", "bad.yaml:4: workload.arrivals.rate: must be at least 1e-06 (found -10)"),
    ("rate: 10", "rate: fast", "bad.yaml:4: workload.arrivals.rate: must be a number (found 'fast')"),
    ("rate: 10", "rate: yes", "bad.yaml:4: workload.arrivals.rate: must be a number (found True)"),
    ("rate: 10", "rate: .inf", "bad.yaml:4: workload.arrivals.rate: must be a finite number (found inf)"),
    (", rate: 10", "", "bad.yaml:4: workload.arrivals.rate: missing"),
    (
        "rate: 10",
        "rate: 10, cv: 2",
        "bad.yaml:4: workload.arrivals.cv: unknown key; choose one of kind",
    ),
    (
        "poisson",
        "poison",
        "bad.yaml:4: workload.arrivals.kind: not a choice; did you mean 'poisson'? (found 'poison')",
    ),
    (
        "kind: poisson, ",
        "",
        "bad.yaml:4: workload.arrivals.kind: missing; choose one of poisson, gamma, constant, burst, "
        "varying, closed, trace",
    ),
    ("requests: 100", "requests: 0", "bad.yaml:5: workload.requests: must be at least 1 (found 0)"),
    (
        "requests: 100",
        "requests: 100000000",
        "bad.yaml:5: workload.requests: must be at most 10,000,000 (found 100000000)",
    ),
    (
        "requests: 100",
        "duration: 1000000000",
        "bad.yaml:5: workload.duration: more than 10,000,000 requests; at most 1e+06 s at 10 requests/s"
        " (found 1000000000)",
    ),
    (
        "replicas: 2",
        "replicas: 1000000000",
        "bad.yaml:2: fleet.replicas: must be at most 16,384 (found 1000000000)",
    ),
    (
        "output: 192\n",
        "output: 192\nengine: {block_size: 7}\n",
        "bad.yaml:8: engine.block_size: engines have blocks of 1, 8, 16, 32, 64, 128 or 256 tokens (found 7)",
    ),
    (
        "output: 192\n",
        "output: 192\nengine: {enforce_eager: true, cudagraph: full}\n",
        "bad.yaml:8: engine.enforce_eager: an eager engine has no graphs (full); give one of the two (found True)",
    ),
    ("requests: 100", "requests: 2.5", "bad.yaml:5: workload.requests: must be a whole number (found 2.5)"),
    (
        "requests: 100",
        "duration: 0",
        "bad.yaml:5: workload.duration: must be greater than 0 (found 0)",
    ),
    (
        "  requests: 100\n",
        "",
        "bad.yaml:3: workload.requests: missing; give requests (a number), duration (seconds), or both",
    ),
    ("median: 512", "median: 5120", "bad.yaml:6: workload.prompt: median (5120) is above p95 (2048)"),
    (
        "median: 512, ",
        "",
        "bad.yaml:6: workload.prompt: give median and p95, or median and sigma, or mean and sigma (found",
    ),
    (
        "output: 192",
        "output: {kind: uniform, min: 9, max: 3}",
        "bad.yaml:7: workload.output: min (9) is above max (3)",
    ),
    ("output: 192", "output: -4", "bad.yaml:7: workload.output: must be at least 1 (found -4)"),
    (
        "output: 192",
        "output: long",
        "bad.yaml:7: workload.output: must be a number, or a mapping whose `kind` is one of fixed, uniform, "
        "lognormal, zipf, empirical (found 'long')",
    ),
    (
        "  output: 192\n",
        "",
        "bad.yaml:3: workload.output: missing; give a length, such as 512 or {kind: ",
    ),
    (
        "output: 192",
        "output: {kind: empirical, values: [3], file: x}",
        "bad.yaml:7: workload.output: give exactly one of file, values and histogram (found file and values)",
    ),
    (
        "output: 192",
        "output: {kind: empirical, histogram: [[1, 2, 1], [9, 5, 1]]}",
        "bad.yaml:7: workload.output.histogram[1]: smallest (9) is above largest (5)",
    ),
    ("gpu: h100, ", "", "bad.yaml:2: fleet.gpu: missing"),
    ("gpu: h100", "gpus: h100", "bad.yaml:2: fleet.gpus: unknown key; did you mean 'gpu'? (found 'h100')"),
    (
        "replicas: 2",
        "routr: sticky",
        "bad.yaml:2: fleet.routr: unknown key; did you mean 'router'? (found 'sticky')",
    ),
    (
        "replicas: 2",
        "router: stiky",
        "bad.yaml:2: fleet.router: not a choice; did you mean 'sticky' or 'sticky-spill'? (found 'stiky')",
    ),
    (
        "{gpu: h100, replicas: 2}",
        "{pools: [{gpu: h100}, {gpu: h200}]}",
        "bad.yaml:2: fleet.pools[1].name: two pools are called serve; give each a name of its own",
    ),
    (
        "{gpu: h100, replicas: 2}",
        "{pools: [{gpu: h100, role: prefill}]}",
        "bad.yaml:2: fleet.pools: a prefill pool needs a decode pool beside it; give one, or role serve",
    ),
    (
        "{gpu: h100, replicas: 2}",
        "{pools: [{gpu: h100, role: decoder}]}",
        "bad.yaml:2: fleet.pools[0].role: not a choice; did you mean 'decode'",
    ),
    (
        "{gpu: h100, replicas: 2}",
        "{pools: [{gpu: h100, role: prefill}, {gpu: h100, role: decode, engine: {max_num_seqs: 9000}}]}",
        "bad.yaml:2: fleet.pools[1].engine.max_num_batched_tokens: 8192 is below max_num_seqs (9000)",
    ),
    (
        "{gpu: h100, replicas: 2}",
        "{gpu: h100, pools: [{gpu: h100}]}",
        "bad.yaml:2: fleet.gpu: belongs into a pool: give either pools, or gpu, replicas and tp without "
        "pools (found 'h100')",
    ),
    (
        "{kind: poisson, rate: 10}",
        "{kind: varying, profile: [[0, 1], [5, 2], [5, 3]]}",
        "bad.yaml:4: workload.arrivals.profile[2]: second 5 is not after 5; points must go forward in time",
    ),
    (
        "{kind: poisson, rate: 10}",
        "{kind: varying, profile: [[0, 1], [5, -2]]}",
        "bad.yaml:4: workload.arrivals.profile[1][1]: must be at least 0 (found -2)",
    ),
    (
        "{kind: poisson, rate: 10}",
        "{kind: varying, profile: {mean: 2, amplitude: 4, period: 3}}",
        "bad.yaml:4: workload.arrivals.profile: amplitude (4) is above mean (2): the rate would be negative",
    ),
    (
        "{kind: poisson, rate: 10}",
        "{kind: trace}",
        "bad.yaml:4: workload.arrivals: trace arrivals need a trace: give trace.file, or another kind",
    ),
    (
        "{kind: poisson, rate: 10}\n  requests: 100",
        "{kind: burst}\n  duration: 9",
        "bad.yaml:3: workload.requests: missing; burst arrivals need a number of requests",
    ),
    (
        "output: 192\n",
        "output: 192\n  trace: {file: x.csv}\n",
        "bad.yaml:6: workload.prompt: the trace says this; remove it, or remove trace",
    ),
    (
        "output: 192\n",
        "output: 192\nslo: {tpot_95: 3}\n",
        "bad.yaml:8: slo.tpot_95: unknown limit; did you mean 'tpot_p95'",
    ),
    (
        "output: 192\n",
        "output: 192\nslo: {ttft_p95: -1}\n",
        "bad.yaml:8: slo.ttft_p95: must be greater than 0 (found -1)",
    ),
    (
        "output: 192\n",
        "output: 192\nengine: {max_num_batched_tokens: 8}\n",
        "bad.yaml:8: engine.max_num_batched_tokens: 8 is below max_num_seqs (256); every request of a step "
        "needs at least one token (found 8)",
    ),
    (
        "output: 192\n",
        "output: 192\nengine: {num_speculative_tokens: 2}\n",
        "bad.yaml:8: engine.acceptance: missing; with num_speculative_tokens set, say how many drafts",
    ),
    (
        "output: 192\n",
        "output: 192\n  accept: [1, 4]\nengine: {num_speculative_tokens: 2}\n",
        "bad.yaml:8: workload.accept: accepts 4 draft tokens, but engine.num_speculative_tokens is 2",
    ),
    (
        "output: 192\n",
        "output: 192\n  accept: {probabilities: [0.3, 0.5]}\n",
        "bad.yaml:8: workload.accept.probabilities[1]: 0.5 is above the 0.3 before it",
    ),
    (
        "output: 192\n",
        "output: 192\n  prefix: 10\n  session: {turns: 3}\n",
        "bad.yaml:8: workload.prefix: a session's shared opening is session.system; do not give prefix",
    ),
    ("output: 192\n", "output: 192\nsed: 3\n", "bad.yaml:8: sed: unknown key; did you mean 'seed'"),
    (
        "output: 192\n",
        "output: 192\nname: a/b\n",
        "bad.yaml:8: name: must be usable as a folder's name: no slashes",
    ),
    ("model: llama-3.1-8b\n", "", "bad.yaml: model: missing"),
]


@pytest.mark.parametrize(("old", "new", "message"), CASES)
def test_one_clear_message(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in BASE
    found = complaint(tmp_path, BASE.replace(old, new))
    assert found.startswith(message)
    assert "\n" not in found


def test_the_nearest_key_comes_first(tmp_path: Path) -> None:
    found = complaint(tmp_path, BASE + "engine: {max_num_seq: 64}\n")
    assert "did you mean 'max_num_seqs'" in found
    assert found.endswith("(found 64)")


def test_several_mistakes_are_listed(tmp_path: Path) -> None:
    found = complaint(tmp_path, BASE.replace("rate: 10", "rate: 0") + "engine: {policy: fifo, block_size: x}\n")
    assert [line.split(": ")[1] for line in found.splitlines()] == [
        "engine.block_size",
        "engine.policy",
        "workload.arrivals.rate",
    ]


def test_workloads_of_a_mix_are_told_apart(tmp_path: Path) -> None:
    mix = """\
model: m
fleet: {gpu: h100}
workload:
  arrivals: {kind: poisson, rate: 3}
  requests: 10
  mix:
    - {share: 1, prompt: 5, output: 5}
    - {share: 1, prompt: 5, output: SECOND}
"""
    assert complaint(tmp_path, mix.replace("SECOND", "0")) == (
        "bad.yaml:8: workload.mix[1].output: must be at least 1 (found 0)"
    )
    assert complaint(tmp_path, mix.replace("{share: 1, prompt: 5, output: SECOND}", "{prompt: 5, output: 5}")) == (
        "bad.yaml:8: workload.mix[1].share: missing; give every workload of the mix a share, or none"
    )
    assert complaint(tmp_path, mix.replace("share: 1", "name: same").replace("SECOND", "5")) == (
        "bad.yaml:7: workload.mix[0].name: two workloads of the mix have this name (found 'same')"
    )
    assert complaint(tmp_path, mix.replace("SECOND", "5").replace("  requests: 10\n", "")) == (
        "bad.yaml:6: workload.mix[0].requests: missing; give requests (a number), duration (seconds), or both"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.yaml: is empty; a scenario needs at least model, fleet and workload"),
        ("# nothing\n", "bad.yaml: is empty; a scenario needs at least model, fleet and workload"),
        ("- 1\n", "bad.yaml: holds a list; a scenario is a mapping with model, fleet and workload"),
        ("hello\n", "bad.yaml: holds only 'hello'; a scenario is a mapping with model, fleet and workload"),
        (BASE + "seed: [1\n", "bad.yaml:9: not valid YAML: did not find expected ',' or ']'"),
        (BASE + "seed: 1\nseed: 2\n", "bad.yaml:9: key 'seed' is given twice, first on line 8"),
        (
            BASE.replace("requests: 100", "output: 3"),
            "bad.yaml:7: key 'output' is given twice, first on line 5",
        ),
        (BASE + "seed: 0100\n", "bad.yaml:8: '0100' begins with 0, as octal numbers do; write 100, or quote it"),
    ],
)
def test_files_that_are_not_scenarios(tmp_path: Path, text: str, message: str) -> None:
    assert complaint(tmp_path, text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model": "m",\n "fleet": }', "bad.json:2: not valid JSON: Expecting value"),
        ('{"model": "m", "model": "n"}', "bad.json: key 'model' is given twice"),
        ("", "bad.json: is empty; a scenario needs at least model, fleet and workload"),
    ],
)
def test_json_files_that_are_not_scenarios(tmp_path: Path, text: str, message: str) -> None:
    assert complaint(tmp_path, text, "bad.json") == message


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml: no such file"):
        load_scenario(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match="is a folder"):
        load_scenario(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"binary\.yaml: not UTF-8 text"):
        load_scenario(tmp_path / "binary.yaml")


def test_a_dict_is_named_by_its_source() -> None:
    data: dict[str, Any] = {"model": "m", "fleet": {"gpu": "h100"}, "workload": {"prompt": 3}}
    with pytest.raises(UserError, match=r"^<dict>: workload\.output: missing"):
        scenario_from_dict(data)
    with pytest.raises(UserError, match=r"^the sweep: workload\.output: missing"):
        scenario_from_dict(data, source="the sweep")


def test_many_mistakes_are_cut_short(tmp_path: Path) -> None:
    wrong = "\n".join(f"    - {{share: 1, prompt: 5, output: -{i}}}" for i in range(1, 12))
    head = "model: m\nfleet: {gpu: h}\nworkload:\n  requests: 1\n  arrivals: {kind: burst}\n  mix:\n"
    found = complaint(tmp_path, head + wrong)
    assert found.splitlines()[-1] == "... and 3 more"
