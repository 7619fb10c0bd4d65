"""`evenhand cache` from the command line, and what it measures."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from evenhand.cache import Cache, Session
from evenhand.cache.memory import MemoryStore
from evenhand.cache.similar import content, entities
from evenhand.cache.sqlite import SqliteStore
from evenhand.cache.stats import stats
from evenhand.cache.thresholds import measure
from evenhand.cli import app
from evenhand.draws import Sharing

from .test_stores import plant
from .toys import PURE, ROLL, entry


def evenhand(*arguments):
    return CliRunner().invoke(app, ["cache", *map(str, arguments)])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "c.db"
    cache = Cache(SqliteStore(path))
    for group in range(2):
        for i in range(4):
            schedule = Sharing.parse("blocks(2)").schedule(1, 0, group, i)
            session = Session(cache, schedule=schedule, group=str(group))
            session.call(ROLL, {}, lambda: "draw")
            session.call(PURE, {"a": 1}, lambda: "value")
            session.close()
    cache.close()
    return path


def test_stats(file):
    store = SqliteStore(file)
    found = stats(store)
    assert (found.calls, found.rollouts, found.groups) == (16, 8, 2)
    assert found.hit_rate == 11 / 16 and found.whole_rollouts == 4 / 8
    assert found.physical_per_group == 2.5 and found.rollouts_per_group == 4
    assert found.tools == {"roll": 4, "pure": 1}
    store.close()
    done = evenhand("stats", file)
    assert done.exit_code == 0
    assert "physical a group   2.50  (of 4.00 rollouts)" in done.output
    assert "wholly served      50.0%" in done.output


def test_check(file):
    assert evenhand("check", file).exit_code == 0
    store = SqliteStore(file)
    e = next(iter(store.entries()))
    plant(store, e.key, e.frame()[:-1] + b"!")
    store.close()
    bad = evenhand("check", file)
    assert bad.exit_code == 1 and "4 whole entries, 1 corrupt" in bad.output
    assert evenhand("check", file, "--fix").exit_code == 0
    assert evenhand("check", file).exit_code == 0


def test_check_of_a_file_that_cannot_be_opened(file):
    data = bytearray(file.read_bytes())
    data[:16] = b"not SQLite any m"
    file.write_bytes(data)
    run = [sys.executable, "-m", "evenhand", "cache"]
    done = subprocess.run([*run, "stats", file], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--fix" in done.stderr
    fixed = evenhand("check", file, "--fix")
    assert fixed.exit_code == 0 and "rebuilt from 5 whole entries" in fixed.output
    assert evenhand("check", file).exit_code == 0


def test_a_file_that_is_no_cache_is_never_rebuilt(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("words " * 1000)
    run = [sys.executable, "-m", "evenhand", "cache", "check", "--fix", str(page)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and page.read_text() == "words " * 1000


def test_import_and_export(file, tmp_path):
    out, other = tmp_path / "out.jsonl", tmp_path / "other.db"
    assert evenhand("export", file, out).output == "5 entries\n"
    assert "5 stored" in evenhand("import", other, out).output
    assert "5 known" in evenhand("import", other, out).output
    call = {"function": {"name": "f", "arguments": "{}"}}
    asked, told = {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}
    line = {"messages": [asked, told]}
    chat, effects = tmp_path / "chat.jsonl", tmp_path / "effects.yaml"
    chat.write_text(json.dumps(line) + "\n")
    assert "undeclared, not kept: f (1)" in evenhand("import", other, chat).output
    effects.write_text("f: reads\n")
    assert "1 stored" in evenhand("import", other, chat, "--effects", effects).output
    assert "1 stored" in evenhand("import", tmp_path / "x.db", chat, "--assume", "pure").output


def test_thresholds(tmp_path):
    store = MemoryStore()
    from evenhand.cache.frames import Entry, describe
    from evenhand.cache.keys import digest
    from evenhand.cache.values import encode

    def add(q, value):
        kind, payload = encode(value)
        words = describe("f", json.dumps({"q": q}, separators=(",", ":")))
        store.put(Entry(digest(q), kind, payload, words))

    add("tell me about the city of Paris in the year 1990 please", "p")
    add("tell me about the city of Paris in the year 1991 please", "q")  # gated: number
    add("tell me of the city of Paris in the year 1990 please", "p")  # wanted
    found = measure(store)
    assert found.different == 2 and found.same == 1
    assert found.proposed == 0.80  # the gate alone keeps them apart
    alone = {level: n for level, n, _, _ in found.rows}
    assert alone[0.95] >= 1  # similarity alone would not
    add("tell me about the town of Paris in the year 1990 please", "r")  # past the gate, different
    found = measure(store)
    assert 0.9 < found.proposed <= 1.0
    at = {level: gated for level, _, gated, _ in found.rows}
    assert at[0.90] >= 1 and at[found.proposed] == 0
    strict = measure(store, gate=content)
    assert all(gated == 0 for _, _, gated, _ in strict.rows)


def test_the_thresholds_command(file):
    done = evenhand("thresholds", file)
    assert done.exit_code == 0 and "proposed: 0.80" in done.output


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("San Jose", "San Francisco", False),
        ("san jose", "San Jose", True),
        ("flights from Rome to Oslo on the 3rd", "flights from Oslo to Rome on the 3rd", False),
        ("is it safe to open this file", "is it not safe to open this file", False),
        ("is it safe to open this file", "is it isn't safe to open this file", False),
        ("open the file a.txt for reading now", "open the file b.txt for reading now", False),
        ("list all the orders over 100 euros", "list all the orders over 1000 euros", False),
        ("show me all the orders of today", "list all of the orders for today", True),
    ],
)
def test_the_gate(a, b, equal):
    x, y = (json.dumps({"q": q}) for q in (a, b))
    assert (entities(x) == entities(y)) == equal
    assert entities(x) != entities(json.dumps({"other": a}))
    if not equal:
        assert content(x) != content(y)


def test_entries_without_a_description(tmp_path):
    e = entry("x", tool="")
    assert e.described["context"] == ""
