"""The journal of a search: nothing that was put is lost, and no other search's journal is used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.scenario import scenario_from_dict
from steelyard.search.journal import SearchJournal, point_key

WHAT = "sweep of tiny (abc)"


def test_a_later_journal_has_the_rows_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "journal.jsonl"
    with SearchJournal(path, WHAT) as journal:
        assert journal.get("a") is None
        kept = journal.put("a", {"rate": 1.5, "ttft": inf, "of": (1, 2)})
        journal.put("b", {"refused": "no room"})
        assert kept == journal.get("a") == {"rate": 1.5, "ttft": None, "of": [1, 2]}
    with SearchJournal(path, WHAT) as journal:
        assert journal.get("a") == kept and journal.get("b") == {"refused": "no room"} and len(journal) == 2


def test_a_journal_without_rows_leaves_nothing(tmp_path: Path) -> None:
    with SearchJournal(tmp_path / "new" / "journal.jsonl", WHAT):
        pass
    assert not list(tmp_path.iterdir())


def test_that_of_another_search_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with SearchJournal(path, WHAT) as journal:
        journal.put("a", {"rate": 1.0})
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"a journal of 'sweep of tiny \(abc\)', not of 'sweep of other'"):
        SearchJournal(path, "sweep of other")
    assert path.read_bytes() == before
    SearchJournal(path, WHAT).close()  # it is not locked either


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"a": 1}\n', "not the journal of a search"),
        ('{"journal": 5}\n', "not the journal of a search"),
        ("nonsense\n", "not valid JSON"),
        ("nonsense", "not valid JSON"),
        (" \n", "not the journal of a search, but blank"),
        ('{"journal": "sweep of other"}\n{"half', "a journal of 'sweep of other'"),
        ('{"journal": "sweep of tiny (abc)"}\n{"key": "a"}\n', "must have a key and a row"),
        ('{"journal": "sweep of tiny (abc)"}\nnonsense\n{"key": "a", "row": {}}\n', ":2: not valid JSON"),
    ],
)
def test_other_files_are_refused_and_unchanged(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match=told):
        SearchJournal(path, WHAT)
    assert path.read_text() == line


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_half_a_line_is_removed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    with SearchJournal(path, WHAT) as journal:
        journal.put("a", {"rate": 1.0})
        journal.put("b", {"rate": 2.0})
    path.write_bytes(path.read_bytes()[:-cut])
    with SearchJournal(path, WHAT) as journal:
        assert journal.get("a") == {"rate": 1.0} and journal.get("b") is None
        journal.put("b", {"rate": 2.0})
    with SearchJournal(path, WHAT) as journal:
        assert journal.get("b") == {"rate": 2.0}


@pytest.mark.parametrize("left", [0, 1, 9, 33, 34, 35])
def test_a_first_line_that_was_cut_short(tmp_path: Path, left: int) -> None:
    """The process may be killed at any byte of it."""
    path, header = tmp_path / "journal.jsonl", b'{"journal":"sweep of tiny (abc)"}\n'
    path.write_bytes(header[:left])
    with SearchJournal(path, WHAT) as journal:
        journal.put("a", {"rate": 1.0})
    assert path.read_bytes() == header + b'{"key":"a","row":{"rate":1.0}}\n'


def test_a_last_line_without_its_end_is_put_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with SearchJournal(path, WHAT) as journal:
        journal.put("a", {"rate": 1.0})
        journal.put("b", {"rate": 2.0})
    path.write_bytes(path.read_bytes()[:-1])
    with SearchJournal(path, WHAT) as journal:
        assert len(journal) == 1 and journal.get("b") is None


def test_two_searches_do_not_write_to_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with SearchJournal(path, WHAT), pytest.raises(UserError, match="another run is writing to it"):
        SearchJournal(path, WHAT)


def test_an_unwritable_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.journal\.jsonl: cannot be written"):
        SearchJournal(tmp_path / "file" / "journal.jsonl", WHAT)


KILLED = """
import sys
from pathlib import Path
from steelyard.search.journal import SearchJournal
journal = SearchJournal(Path(sys.argv[1]), "sweep of tiny (abc)")
i = len(journal)
while True:
    journal.put(str(i), {"number": i, "text": "x" * 300})
    print(i, flush=True)
    i += 1
"""


def test_kill_9_loses_nothing_that_was_put(tmp_path: Path) -> None:
    """Killed again and again, at any moment."""
    path, put = tmp_path / "journal.jsonl", -1
    for round_ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        for _ in range(20 + 37 * round_):
            put = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        put = max([put, *(int(line) for line in process.stdout if line.endswith("\n"))])
        process.wait()
        process.stdout.close()
        with SearchJournal(path, WHAT) as journal:
            for i in range(put + 1):
                assert journal.get(str(i)) == {"number": i, "text": "x" * 300}
            assert len(journal) in (put + 1, put + 2)


def test_keys_tell_scenarios_and_their_files_apart(tmp_path: Path) -> None:
    written = {
        "model": "qwen3-8b",
        "fleet": {"gpu": "h100", "replicas": 1},
        "workload": {"trace": {"file": "requests.jsonl"}},
    }
    trace = tmp_path / "requests.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n')
    one = scenario_from_dict(written, "a.yaml", base_dir=tmp_path)
    first = point_key(one)
    assert first == point_key(scenario_from_dict(written, "b.yaml", base_dir=tmp_path))
    assert first != point_key(one.replace(seed=5)) and first != point_key(one, "capacity")
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 50}\n')
    assert first != point_key(one)
