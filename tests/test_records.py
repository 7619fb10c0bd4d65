"""Records: whole round trips, and a sentence with file and line for every broken one."""

import dataclasses
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.errors import RecordError, UserError
from evenhand.records import (
    Call,
    Draw,
    Result,
    Rollout,
    Turn,
    json_lines,
    read_jsonl,
    read_parquet,
    worst_tier,
    write_jsonl,
    write_parquet,
)

# Any text at all, lone surrogates included, inside turns: a policy can write "\ud800" in JSON.
hostile = st.text(st.characters() | st.sampled_from("\ud800\udfff\x00\u2028"), max_size=20)
plain = st.text(max_size=20)
finite = st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | hostile,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(Call, hostile, st.dictionaries(hostile, json_values, max_size=3))
results = st.builds(Result, json_values, st.none() | hostile)
draws = st.builds(
    Draw,
    plain,
    plain,
    hostile,
    st.integers(-1, 9),
    st.none() | plain,
    st.booleans(),
    st.none() | plain,
)
turns = st.builds(
    Turn,
    hostile,
    st.none() | calls,
    st.none() | hostile,
    st.none() | results,
    st.none() | draws,
    st.integers(0, 999),
    st.integers(0, 999),
)


@st.composite
def rollouts(draw):
    length = draw(st.integers(0, 6))
    exactly = {"min_size": length, "max_size": length}
    maybe_float = st.none() | finite
    maybe_int = st.none() | st.integers(0, 2**40)
    return Rollout(
        task_id=draw(plain),
        group_id=draw(plain),
        index=draw(st.integers(0, 2**40)),
        step=draw(st.integers(0, 2**40)),
        split=draw(plain),
        family=draw(plain),
        environment=draw(plain),
        sharing=draw(plain),
        schedule=draw(plain),
        parent=draw(maybe_int),
        fork_at=draw(maybe_int),
        tokens=draw(st.lists(st.integers(0, 2**31 - 1), **exactly)),
        mask=draw(st.lists(st.integers(0, 1), **exactly)),
        logprobs=draw(st.lists(st.floats(max_value=0, allow_nan=False), **exactly)),
        temperature=draw(finite),
        top_p=draw(finite),
        turns=draw(st.lists(turns, max_size=3)),
        reward_true=draw(maybe_float),
        reward=draw(maybe_float),
        grader_flip=draw(st.booleans()),
        advantage=draw(maybe_float),
        stop=draw(plain),
        failure=draw(st.none() | plain),
        wall_s=draw(finite),
    )


def example(**changes) -> Rollout:
    turn = Turn(
        "<tool_call>",
        Call("query", {"sql": "SELECT 1"}),
        result=Result({"rows": [[1]]}),
        draw=Draw("ab", "query", '"movies"', 0, "stale_read", False),
        start=2,
        end=3,
    )
    whole = Rollout(
        "t", "g", 0, tokens=[1, 2, 3], mask=[0, 0, 1], logprobs=[0.0, 0.0, -0.5], turns=[turn]
    )
    return dataclasses.replace(whole, **changes)


# --- round trips ------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(rollouts(), max_size=3))
def test_both_formats_give_back_equal_rollouts(records):
    with tempfile.TemporaryDirectory() as folder:
        lines, table = Path(folder, "r.jsonl"), Path(folder, "r.parquet")
        size = write_jsonl(lines, records)
        assert size == lines.stat().st_size
        write_parquet(table, records)
        assert list(read_jsonl(lines)) == records
        assert list(read_parquet(table)) == records
        assert [p.name for p in sorted(Path(folder).iterdir())] == ["r.jsonl", "r.parquet"]


@given(rollouts())
def test_from_json_undoes_to_json(record):
    assert Rollout.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_append_adds_to_the_end(tmp_path):
    path = tmp_path / "r.jsonl"
    write_jsonl(path, [example(index=0)])
    size = write_jsonl(path, [example(index=1), example(index=2)], append=True)
    assert size == path.stat().st_size
    assert [r.index for r in read_jsonl(path)] == [0, 1, 2]


def test_parquet_columns_are_typed_and_need_no_evenhand_to_read(tmp_path):
    write_parquet(tmp_path / "r.parquet", [example()])
    table = pq.read_table(tmp_path / "r.parquet")
    assert table.schema.field("tokens").type == pa.list_(pa.int32())
    assert table.schema.field("reward").type == pa.float64()
    assert json.loads(table["turns"][0].as_py())[0]["draw"]["fault"] == "stale_read"


def test_a_failed_parquet_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "r.parquet"
    write_parquet(path, [example()])
    with pytest.raises(pa.ArrowException):
        write_parquet(path, [example(tokens=["not a number"])])
    assert list(read_parquet(path)) == [example()]


# --- what the policy reads --------------------------------------------------------------------


@given(json_values, st.none() | st.text())
def test_result_text_is_json_that_any_tokenizer_can_encode(value, error):
    text = Result(value, error).text
    text.encode()
    parsed = json.loads(text)
    if error is not None:
        assert parsed["error"] == error


def test_a_lone_surrogate_becomes_a_question_mark():
    assert Result({"message": "no table \ud800"}, "BAD_SQL").text.endswith('no table ?"}')


def test_an_error_code_is_not_overwritten_by_its_details():
    assert json.loads(Result({"error": "fine"}, "BAD_SQL").text)["error"] == "BAD_SQL"


# --- broken files -----------------------------------------------------------------------------


def lines_of(path: Path) -> list[bytes]:
    write_jsonl(path, [example(index=i) for i in range(3)])
    return path.read_bytes().splitlines(keepends=True)


@settings(max_examples=40)
@given(data=st.data())
def test_a_writer_killed_anywhere_leaves_a_named_torn_line(data, tmp_path):
    path = tmp_path / "r.jsonl"
    lines = lines_of(path)
    cut = data.draw(st.integers(1, len(lines[2]) - 2))
    path.write_bytes(lines[0] + lines[1] + lines[2][:cut])
    with pytest.raises(RecordError) as caught:
        list(read_jsonl(path))
    assert f"{path}, line 3: torn record" in str(caught.value)
    assert [r.index for r in read_jsonl(path, drop_torn=True)] == [0, 1]


@pytest.mark.parametrize(
    "broken",
    [b"{]\n", b"[1]\n", b'"text"\n', b'{"a": "\xff"}\n', b"[" * 50_000 + b"\n"],
    ids=["bracket", "list", "string", "not-utf8", "deep"],
)
@pytest.mark.parametrize("drop_torn", [False, True])
def test_a_broken_line_names_file_and_line(tmp_path, broken, drop_torn):
    path = tmp_path / "r.jsonl"
    lines = lines_of(path)
    path.write_bytes(lines[0] + broken + lines[2])
    with pytest.raises(RecordError) as caught:
        list(read_jsonl(path, drop_torn=drop_torn))
    assert f"{path}, line 2: broken record" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_blank_lines_are_passed_over_but_counted(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('\n{"a": 1}\n\n{"b": 2}\n')
    assert list(json_lines(path)) == [(2, {"a": 1}), (4, {"b": 2})]


def broken(**changes):
    return {**example().to_json(), **changes}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (broken(version=4), "version 4 is not 3"),
        (broken(version=None), "version None"),
        (broken(version=True), "version True"),
        (broken(colour="red"), "unknown field 'colour'"),
        (broken(task_id=7), "'task_id' must be str, not int"),
        (broken(index=None), "'index' must be int, not NoneType"),
        (broken(index=True), "'index' must be int, not bool"),
        (broken(grader_flip=1), "'grader_flip' must be bool, not int"),
        (broken(reward="1"), "'reward' must be float | None, not str"),
        (broken(turns=None), "'turns' must be"),
        (broken(turns=[3]), "not a rollout record"),
        (broken(turns=[{"text": "x", "colour": 1}]), "colour"),
        (broken(turns=[{"text": "x", "call": {"tool": "t", "colour": 1}}]), "colour"),
        (broken(mask=[1]), "'mask' has 1 entries for 3 tokens"),
        (broken(logprobs=[0.0] * 4), "'logprobs' has 4 entries for 3 tokens"),
        ({"version": 1}, "task_id"),
    ],
)
def test_a_record_of_another_shape_names_line_and_field(tmp_path, record, words):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(example().to_json()) + "\n" + json.dumps(record) + "\n")
    with pytest.raises(UserError) as caught:
        list(read_jsonl(path))
    assert f"{path}, line 2: " in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fields_of_other_engines_may_be_absent():
    """A log without log-probabilities or mask is still a record."""
    record = Rollout.from_json(
        {"version": 1, "task_id": "t", "group_id": "g", "index": 0, "tokens": [1, 2]}
    )
    assert record.logprobs == []
    assert not record.lost


def test_broken_parquet_files_are_named(tmp_path):
    path = tmp_path / "r.parquet"
    write_parquet(path, [example()])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RecordError, match=r"r\.parquet: not a whole evenhand Parquet file"):
        list(read_parquet(path))
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(RecordError, match=r"r\.parquet, row 0: record version None"):
        list(read_parquet(path))
    row = {**example().to_json(), "turns": "{]"}
    pq.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(RecordError, match=r"r\.parquet"):
        list(read_parquet(path))


@pytest.mark.parametrize("read", [read_jsonl, read_parquet])
def test_a_missing_file_is_named(tmp_path, read):
    with pytest.raises(RecordError, match=r"none\.file: cannot be read"):
        list(read(tmp_path / "none.file"))


def test_the_worst_tier():
    assert worst_tier([]) is None and worst_tier([None, None]) is None
    assert worst_tier(["exact", None]) == "exact"
    assert worst_tier(["exact", "fuzzy", "exact"]) == "fuzzy"
    assert worst_tier(["exact", "tool", "fuzzy"]) == "tool"
