"""Readers of recorded requests: small files of every format, and the mistakes in them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.scenario import scenario_from_dict
from steelyard.workload import Workload, build_workload, read_trace
from steelyard.workload.traces.prefixes import shared_prefixes

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.9000001,374,44
2023-11-17 00:00:00.1000003,0,109
2023-11-17 00:00:00.1000002,879,0
"""


def saved(folder: Path, name: str, content: str | list[dict[str, Any]]) -> Path:
    path = folder / name
    text = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
    path.write_text(text)
    return path


def replayed(path: Path, **spec: Any) -> Workload:
    workload = {"trace": {"file": path.name}, **spec}
    scenario = scenario_from_dict({"model": "m", "fleet": {"gpu": "g"}, "workload": workload})
    work = build_workload(scenario.workload, 0, path.parent)
    work.validate()
    return work


def written_out(work: Workload, row: int) -> list[tuple[int, int]]:
    """A request's prompt and output as (stream, position); tokens nobody shares are its own."""
    content = work.content[row] if work.content is not None else ()
    tokens = [(stream, i) for stream, length in content for i in range(length)]
    stream = int(work.stream[row])
    start = content[-1][1] if content and content[-1][0] == stream else 0
    own = stream if stream >= 0 else -1000 - row
    return tokens + [(own, start + i) for i in range(int(work.prompt[row] + work.output[row]) - len(tokens))]


def common(left: Any, right: Any) -> int:
    """How many leading items are equal."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_azure_counts_seconds_exactly_and_sorts(tmp_path: Path) -> None:
    work = replayed(saved(tmp_path, "a.csv", AZURE))
    assert work.at.tolist() == [0.0, 0.2000001, 0.2000002]
    assert work.prompt.tolist() == [374, 879, 1]
    assert work.output.tolist() == [44, 1, 109]
    assert work.content is None
    assert work.notes == [
        "a.csv: a prompt of 0 tokens counts as 1 (requests: 1)",
        "a.csv: an output of 0 tokens counts as 1 (requests: 1)",
    ]


def test_azure_of_a_later_year_and_other_column_orders(tmp_path: Path) -> None:
    text = (
        "GeneratedTokens,TIMESTAMP,ContextTokens\r\n"
        "5,2024-05-10 00:00:00.009930+00:00,2162\r\n\r\n"
        "8,2024-05-10T00:00:01Z,2399\r\n"
    )
    work = replayed(saved(tmp_path, "b.csv", text))
    assert work.at.tolist() == [0.0, 0.99007]
    assert (work.prompt.tolist(), work.output.tolist()) == ([2162, 2399], [5, 8])


def test_a_trace_may_be_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode()))
    assert len(replayed(path)) == 3
    path.write_bytes(gzip.compress(AZURE.encode())[:-20])
    with pytest.raises(UserError, match=r"a\.csv\.gz: cannot be read"):
        replayed(path)


def test_mooncake_ids_are_prefixes(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"timestamp": 0, "input_length": 1500, "output_length": 3, "hash_ids": [0, 1, 2]},
        {"timestamp": 27, "input_length": 2000, "output_length": 4, "hash_ids": [0, 1, 2, 3]},
        {"timestamp": 30, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 4]},
        {"timestamp": 31, "input_length": 700, "output_length": 6, "hash_ids": [0, 9]},
        {"timestamp": 99, "input_length": 500, "output_length": 7, "hash_ids": [77]},
    ]
    work = replayed(saved(tmp_path, "m.jsonl", rows))
    assert work.at.tolist() == [0, 0.027, 0.03, 0.031, 0.099]
    assert work.content is not None and work.content[4] == ()
    assert (work.stream == -1).all()
    ids = [row["hash_ids"] for row in rows]
    for i in range(5):
        for j in range(i):
            expected = 512 * common(ids[i], ids[j])
            shared = common(written_out(work, i)[: work.prompt[i]], written_out(work, j)[: work.prompt[j]])
            assert shared == min(expected, work.prompt[i], work.prompt[j])


def test_bench_lines_under_many_names(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt_len": 10, "output_len": 3, "arrival_time": 1.5},
        {"input_length": 11, "output_tokens": 4.0, "timestamp": 2},
        {"prompt": "Why?", "prompt_tokens": 12, "completion_tokens": 5, "at": 0.5},
        {"prompt": [5, 6, 7], "max_tokens": 6, "arrival_time_ns": 3e9},
    ]
    work = replayed(saved(tmp_path, "b.jsonl", rows))
    assert work.at.tolist() == [0.5, 1.5, 2.0, 3.0]
    assert work.prompt.tolist() == [12, 10, 11, 3]
    assert work.output.tolist() == [5, 3, 4, 6]


def test_dates_count_from_the_first_request(tmp_path: Path) -> None:
    rows = [{"prompt_len": 1, "output_len": 1, "timestamp": 1.7e9 + i} for i in (5, 8)]
    assert replayed(saved(tmp_path, "b.jsonl", rows)).at.tolist() == [0.0, 3.0]


def test_token_ids_tell_what_is_shared(tmp_path: Path) -> None:
    rows = [
        {"prompt_token_ids": [1, 2, 3, 4], "output_token_ids": [5, 6], "at": 0},
        {"prompt_token_ids": [1, 2, 3, 4, 5, 6, 7], "output_token_ids": [8], "at": 1},  # a second turn
        {"prompt_token_ids": [1, 2, 9, 9], "output_token_ids": [5], "at": 2},
        {"prompt_token_ids": [4, 4], "output_token_ids": [1, 2], "at": 3},
    ]
    work = replayed(saved(tmp_path, "ids.jsonl", rows))
    assert work.content == [(), ((0, 6),), ((0, 2),), ()]
    assert work.stream.tolist() == [0, -1, -1, -1]
    assert work.streams == 1


sequences = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.lists(st.integers(0, 2), max_size=5)),
    min_size=1,
    max_size=8,
)


@given(sequences)
@settings(max_examples=300)
def test_shared_prefixes_are_exactly_those_of_the_tokens(asked: list[tuple[list[int], list[int]]]) -> None:
    ids = [np.array(prompt + output, dtype=np.int64) for prompt, output in asked]
    prompts = [len(prompt) for prompt, _ in asked]
    contents, streams, count = shared_prefixes(ids, prompts)
    n = len(asked)
    work = Workload(
        at=np.arange(n, dtype=np.float64),
        prompt=np.array(prompts),
        output=np.array([max(1, len(output)) for _, output in asked]),
        after=np.full(n, -1),
        think=np.zeros(n),
        priority=np.zeros(n, dtype=np.int64),
        abort=np.full(n, np.inf),
        stream=np.array(streams),
        content=contents,
        accept=None,
        label=np.zeros(n, dtype=np.int64),
        labels=["x"],
        streams=count,
    )
    work.validate()
    for i in range(n):
        for j in range(i):
            left, right = written_out(work, i), written_out(work, j)
            truth = common(asked[i][0], asked[j][0])
            assert common(left[: prompts[i]], right[: prompts[j]]) == truth
            # a prompt never seems to share more of another's output than it does
            both = len(ids[j])
            assert common(left[: prompts[i]], right[:both]) <= common(asked[i][0], ids[j].tolist())


CAPTURE: dict[str, Any] = {
    "name": "talk",
    "requests": [
        {"id": "a", "at": 0.0, "prompt": 50, "output": 10, "prefix": ["sys", 40]},
        {"id": "b", "at": 0.5, "prompt": 45, "output": 5, "prefix": ["sys", 30]},
        {"id": "c", "after": "a", "think": 2.0, "prompt": 70, "output": 4},
        {"id": "d", "after": "c", "think": 1.0, "prompt": 80, "output": 4},
        {"id": "e", "after": "d", "think": 0.5, "prompt": 90, "output": 4},
        {"id": "f", "after": "d", "think": 0.5, "prompt": 99, "output": 4},
        {"id": "g", "after": "f", "think": 0.5, "prompt": 104, "output": 4},
    ],
}


def test_captures_continue_and_branch(tmp_path: Path) -> None:
    work = replayed(saved(tmp_path, "talk.workload.json", json.dumps(CAPTURE)))
    order = [0, 2, 3, 4, 5, 6, 1]  # a chain stays behind its root
    place = {name: order.index(i) for i, name in enumerate("abcdefg")}
    assert np.isnan(work.at[place["c"]]) and work.at[place["b"]] == 0.5
    assert work.think[place["c"]] == 2.0
    sequence = {name: written_out(work, row) for name, row in place.items()}
    for child, parent in ("ca", "dc", "ed", "fd", "gf"):
        assert work.after[place[child]] == place[parent]
        assert sequence[child][: len(sequence[parent])] == sequence[parent]
    assert common(sequence["e"], sequence["f"]) == 84  # siblings part where their parent ended
    assert common(sequence["a"], sequence["b"]) == 30


def test_a_limit_takes_the_first_requests(tmp_path: Path) -> None:
    capture = saved(tmp_path, "talk.workload.json", json.dumps(CAPTURE))
    limited = {"trace": {"file": capture.name, "limit": 4}}
    assert len(replayed(capture, **limited)) == 4
    assert len(replayed(capture, **limited, requests=2)) == 2
    assert len(replayed(saved(tmp_path, "a.csv", AZURE), requests=2)) == 2
    short = saved(tmp_path, "b.jsonl", '{"prompt_len": 1, "output_len": 1, "at": 0}\nbroken')
    assert len(replayed(short, requests=1)) == 1


def test_a_duration_drops_late_roots_with_their_followers(tmp_path: Path) -> None:
    rows = [{**row, "at": 9.0} if row["id"] == "a" else row for row in CAPTURE["requests"]]
    path = saved(tmp_path, "late.json", json.dumps({"requests": rows}))
    assert replayed(path).prompt.tolist() == [45, 50, 70, 80, 90, 99, 104]
    work = replayed(path, duration=1)
    assert work.prompt.tolist() == [45]


def test_a_trace_may_be_played_faster_or_at_other_times(tmp_path: Path) -> None:
    path = saved(tmp_path, "talk.workload.json", json.dumps(CAPTURE))
    faster = replayed(path, arrivals={"kind": "trace", "scale": 2})
    assert np.nanmax(faster.at) == 0.25
    assert faster.think.max() == 1.0
    even = replayed(path, arrivals={"kind": "constant", "rate": 0.1})
    assert even.at[even.after < 0].tolist() == [0, 10]
    azure = saved(tmp_path, "a.csv", AZURE)
    users = replayed(azure, arrivals={"kind": "closed", "users": 2, "think": 3})
    assert users.after.tolist() == [-1, -1, 0]
    with pytest.raises(UserError, match="its requests already wait for each other"):
        replayed(path, arrivals={"kind": "closed", "users": 2})


def test_a_trace_takes_part_in_a_mix(tmp_path: Path) -> None:
    saved(tmp_path, "a.csv", AZURE)
    mix = [
        {"name": "old", "trace": {"file": "a.csv"}},
        {
            "name": "new",
            "arrivals": {"kind": "constant", "rate": 10},
            "requests": 4,
            "prompt": 7,
            "output": 7,
        },
    ]
    scenario = scenario_from_dict({"model": "m", "fleet": {"gpu": "g"}, "workload": mix})
    work = build_workload(scenario.workload, 0, tmp_path)
    work.validate()
    assert work.at.tolist() == pytest.approx([0.0, 0.0, 0.1, 0.2, 0.2000001, 0.2000002, 0.3], abs=1e-12)
    assert work.labels == ["old", "new"]
    assert np.bincount(work.label).tolist() == [3, 4]


GOOD = '{"prompt_len": 1, "output_len": 1, "at": 0}\n'
MOON = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'

BAD = [
    (
        "x.csv",
        AZURE + "2023-11-17 00:00:09.1,12\n",
        "x.csv:5: has 2 columns; TIMESTAMP, ContextTokens, Generated",
    ),
    (
        "x.csv",
        AZURE + "yesterday,12,3\n",
        "x.csv:5: TIMESTAMP must read like 2023-11-16 18:15:46.6805900 (found 'yes",
    ),
    ("x.csv", AZURE + "2023-13-17 00:00:09.1,12,3\n", "x.csv:5: TIMESTAMP must read like"),
    (
        "x.csv",
        AZURE + "2023-11-17 00:00:09.1,-12,3\n",
        "x.csv:5: ContextTokens must be a whole number of tokens",
    ),
    ("x.csv", "TIMESTAMP,Tokens\n", "x.csv:1: the header lacks ContextTokens, GeneratedTokens"),
    ("x.csv", AZURE.splitlines()[0] + "\n", "x.csv: the trace holds no requests"),
    ("x.csv", "", "x.csv: the trace holds no requests"),
    ("x.jsonl", GOOD + '\n{"prompt_len": 3,', "x.jsonl:3: not valid JSON: "),
    ("x.jsonl", '{"prompt_len": 3,', "x.jsonl:1: not valid JSON: "),
    ("x.jsonl", GOOD + "17\n", "x.jsonl:2: must be a JSON object (found 17)"),
    (
        "x.jsonl",
        GOOD + '{"output_len": 3}\n',
        "x.jsonl:2: the prompt length is missing; give one of prompt_len,",
    ),
    (
        "x.jsonl",
        '{"prompt": "Hi"}\n',
        "x.jsonl:1: the prompt is text without a token count; give one of prompt_len",
    ),
    (
        "x.jsonl",
        GOOD + '{"prompt_len": "3", "output_len": 1}\n',
        "x.jsonl:2: prompt_len must be a whole number of",
    ),
    (
        "x.jsonl",
        GOOD + '{"prompt_len": 1e30, "output_len": 1}\n',
        "x.jsonl:2: prompt_len must be a whole number of",
    ),
    (
        "x.jsonl",
        GOOD + '{"prompt_len": 3, "output_len": 1}\n',
        "x.jsonl:2: either every line gives an arrival time",
    ),
    (
        "x.jsonl",
        GOOD + '{"prompt_len": 3, "output_len": 1, "at": -1}\n',
        "x.jsonl:2: at must be a number, 0 to 1e+20",
    ),
    (
        "x.jsonl",
        GOOD + '{"prompt_len": 3, "output_len": 1, "at": NaN}\n',
        "x.jsonl:2: at must be a number, 0 to 1e+20",
    ),
    (
        "x.jsonl",
        '{"prompt_ids": ["a"], "output_len": 1}\n',
        "x.jsonl:1: prompt_ids must be a list of token ids",
    ),
    (
        "x.jsonl",
        '{"prompt_ids": [1], "prompt_len": 2}\n',
        "x.jsonl:1: prompt_len is 2, but the prompt has 1 token ids",
    ),
    (
        "x.jsonl",
        '{"prompt_len": 1, "output_len": 1}\n',
        "x.jsonl: has no arrival times; give the workload arrivals",
    ),
    (
        "x.jsonl",
        MOON + MOON.replace("[1, 2]", "[3, 2]"),
        "x.jsonl:2: hash id 2 follows another block than before",
    ),
    (
        "x.jsonl",
        MOON + MOON.replace("[1, 2]", str(list(range(900_000)))),
        "x.jsonl:2: hash_ids names 900,000 blocks, but an input_length of 600 fills at most 2 of 512 tokens",
    ),
    (
        "x.jsonl",
        MOON.replace("600", "512"),
        "x.jsonl:1: hash_ids names 2 blocks, but an input_length of 512 fills at most 1 of 512 tokens",
    ),
    ("x.jsonl", MOON + MOON.replace("[1, 2]", '"1"'), "x.jsonl:2: hash_ids must be a list of whole numbers"),
    ("x.jsonl", MOON + '{"timestamp": 1}\n', "x.jsonl:2: input_length is missing"),
    ("x.json", '{"requests": []}', "x.json: the trace holds no requests"),
    ("x.json", '{\n"requests": [,]}', "x.json:2: not valid JSON: "),
    ("x.json", '{\n"asked": []}', "x.json: must be a JSON object with a list of `requests`"),
    ("x.json", '{"requests": [3]}', "x.json: requests[0]: must be a JSON object (found 3)"),
    ("x.json", '{"requests": [{"at": 0, "prompt": 3}]}', "x.json: requests[0]: output is missing"),
    (
        "x.json",
        '{"requests": [{"after": 5, "prompt": 3, "output": 1}]}',
        "x.json: requests[0]: after 5 is not the id",
    ),
    (
        "x.json",
        '{"requests": [{"at": 0, "prompt": 3, "output": 9, "prefix": 5}]}',
        "x.json: requests[0]: prefix must be [key, tokens] (found 5)",
    ),
    (
        "x.json",
        '{"requests": [{"at": 0, "prompt": 3, "output": 9, "prefix": ["k", 5]}]}',
        "x.json: requests[0]: prefix of 5 tokens is longer than the prompt (3)",
    ),
    (
        "x.json",
        '{"requests": [{"at": 0, "prompt": 3, "output": 9}, {"after": 0, "prompt": 11, "output": 1}]}',
        "x.json: requests[1]: prompt of 11 tokens is shorter than the prompt and output that it follows (12)",
    ),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_an_unreadable_line_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = saved(tmp_path, name, text)
    with pytest.raises(UserError) as caught:
        replayed(path)
    found = str(caught.value)
    assert found.startswith(str(path))
    assert found.replace(str(path), name).startswith(message)


def test_a_missing_or_binary_trace(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.csv: no such file"):
        read_trace(tmp_path / "gone.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"b\.csv: not UTF-8 text"):
        read_trace(tmp_path / "b.csv")
    with pytest.raises(UserError, match="is a folder"):
        read_trace(tmp_path)


def test_a_format_may_be_named(tmp_path: Path) -> None:
    path = saved(tmp_path, "m.jsonl", MOON)
    assert read_trace(path, "vllm-bench").prompt.tolist() == [600]
    with pytest.raises(UserError, match=r"m\.jsonl:1: the header lacks"):
        read_trace(path, "azure")


def test_requests_of_one_second_go_in_the_order_they_were_sent(tmp_path: Path) -> None:
    rows = [{"id": i, "at": at, "prompt": 10 + i, "output": 2} for i, at in enumerate([0.0, 0.0, 0.0, 1.0])]
    (tmp_path / "burst.workload.json").write_text(json.dumps({"requests": rows}))
    sent = [{"id": i, "at": at} for i, at in ((0, 0.02), (1, 0.03), (2, 0.01), (3, 0.9))]
    (tmp_path / "burst.requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sent))
    trace = {"file": "burst.workload.json", "format": "capture", "sent": "burst.requests.jsonl"}
    run = scenario_from_dict(
        {"model": "llama-3.1-8b", "fleet": {"gpu": "h200"}, "workload": {"trace": trace, "arrivals": {"kind": "trace"}}}
    )
    work = build_workload(run.workload, 0, tmp_path)
    assert work.prompt.tolist() == [12, 10, 11, 13]
    assert work.at == pytest.approx([0.0, 0.0, 0.0, 1.0], abs=1e-9)


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "x.jsonl",
            '{"prompt_len": 3, "output_len": 5, "at": ' + "9" * 400 + "}",
            r"x\.jsonl:1: a number of 400 digits",
        ),
        ("x.jsonl", '{"prompt_len": 3, "output_len": 5, "at": 1e300}', r"x\.jsonl:1: at must be a number, 0 to"),
        ("x.jsonl", '{"a": ' + "[" * 500 + "]" * 500 + "}", r"x\.jsonl:1: nested more than"),
        ("x.csv", f"{HEADER}2023-11-16 18:15:46,3,{'4' * 131_073}", r"x\.csv:2: not valid CSV: field larger"),
        ("x.csv", f"{HEADER}2023-11-16 18:15:46,3,{'4' * 5000}", r"x\.csv:2: GeneratedTokens must be"),
        ("x.csv", f"{HEADER}2023-11-16 18:15:46,3,\u00b2", r"x\.csv:2: GeneratedTokens must be"),
        (
            "x.json",
            '{"requests": [{"id": 1, "at": 0, "prompt": 1, "output": 1}, {"id": 1, "at": 0, "prompt": 1, '
            '"output": 1}]}',
            r"x\.json: requests\[1\]: id '1' is taken",
        ),
    ],
)
def test_hostile_traces(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as refused:
        read_trace(tmp_path / name)
    assert len(str(refused.value)) < 500
