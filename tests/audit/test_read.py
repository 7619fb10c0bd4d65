"""Every kind of log is recognised by itself; what is odd in it is handled or named."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenhand.audit import read
from evenhand.errors import UserError
from evenhand.records import Call, Draw, Result, Rollout, Turn, write_parquet


def lines(path, rows, end="\n"):
    path.write_text("\n".join(json.dumps(row) for row in rows) + end)
    return path


def sizes(log):
    return sorted(np.unique(log.group_N[log.group_N >= 0], return_counts=True)[1].tolist())


def own(index, group, **more):
    turn = Turn(
        "get",
        Call("get", {"id": 1}),
        result=Result(None, "DOWN"),
        draw=Draw("s", "get", "1", 0, fault="DOWN", tier="exact"),
    )
    return Rollout("t", group, index, turns=[turn], schedule=f"s{group}", **more)


def test_evenhand_run(tmp_path):
    (tmp_path / "recipe.yaml").write_text("")
    (tmp_path / "rollouts").mkdir()
    rollouts = [own(i, g, reward=1.0, reward_true=0.0) for g in "ab" for i in range(3)]
    rollouts.append(own(3, "a", failure="disk"))
    write_parquet(tmp_path / "rollouts" / "step_00001.parquet", rollouts)
    lines(
        tmp_path / "evaluations.jsonl",
        [{"step": 0, "set": "v", "task_id": "t", "schedule_index": 0, "success": 1}],
        end='\n{"step": 0, "se',
    )
    log = read(tmp_path)
    assert (log.source, len(log), sizes(log)) == ("evenhand", 8, [3, 4])
    assert log.training_N.sum() == 7
    assert log.votes_N.sum() == 6
    assert log.first_fault_N[0] == 1
    assert log.tier_N[0] == 1
    assert log.failed_C.all()
    assert len(set(log.schedule_N.tolist())) == 3


def test_trl_groups_are_rows_in_a_row(tmp_path):
    rows = [
        {"step": 5, "prompt": p, "completion": c, "right": r, "advantage": 0.0}
        for p in ("one", "two")
        for c, r in (("x", 1.0), ("y", 0.0), ("z", None))
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "completions_00005.parquet")
    log = read(tmp_path)
    assert (log.source, sizes(log)) == ("trl", [3, 3])
    assert log.lost_N.sum() == 2
    assert any("no group id" in note for note in log.notes)


def test_trl_that_mixes_train_and_eval_is_named(tmp_path):
    rows = [
        {"step": 5, "prompt": p, "completion": "x", "r": 1.0, "advantage": 0.0}
        for p in ("one", "one", "eval")
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "completions_00005.parquet")
    assert any("no group size fits" in note for note in read(tmp_path).notes)


@pytest.mark.parametrize("uid", [True, False])
def test_verl_both_trainers(tmp_path, uid):
    rows = [
        {"input": p, "output": f"{i}", "gts": "", "score": i / 2, "step": 7}
        | ({"uid": f"a_b{p}_{i}_0"} if uid else {})
        for p in "pq"
        for i in range(3)
    ]
    lines(tmp_path / "7.jsonl", rows)
    log = read(tmp_path)
    assert (log.source, sizes(log)) == ("verl", [3, 3])
    assert set(log.step_N.tolist()) == {7}


def test_verl_scalars_are_refused_with_the_mend(tmp_path):
    with pytest.raises(UserError, match="rollout_data_dir"):
        read(lines(tmp_path / "x.jsonl", [{"step": 1, "data": {"reward": 1}}]))


def test_verifiers(tmp_path):
    nodes = [
        {"message": {"role": "assistant", "tool_calls": [{"id": "1", "name": "g"}]}},
        {"message": {"role": "tool", "tool_call_id": "1", "content": '{"error": "DOWN"}'}},
    ]
    rewards = {"right": {"score": 1.0, "weight": 0.5}, "form": {"score": 1.0, "weight": 0.25}}
    rows = [
        {
            "task": {"hash": "h"},
            "group": {"id": "g"},
            "run": {"type": kind, "work": {"step": 2}},
            "traces": [{"nodes": nodes, "rewards": rewards, "info": {}}],
        }
        for kind in ("train", "train", "eval")
    ]
    log = read(lines(tmp_path / "traces.jsonl", rows))
    assert (log.source, log.training_N.sum()) == ("verifiers", 2)
    assert log.reward_N[0] == 0.75
    assert log.failed_C.tolist() == [True] * 3


def test_verifiers_with_evenhands_own_record(tmp_path):
    call = {"call": {"tool": "g", "arguments": {}}, "result": {"value": 1, "error": None}}
    drawn = {**call, "draw": {"fault": "outage", "applied": True, "tier": None}}
    dealt = {"task_id": "t", "group_id": "1/0", "index": 0, "step": 1, "schedule": "s"}
    node = {"message": {"role": "assistant", "content": "x"}, "advantages": [0.5, 0.5]}
    trace = {"nodes": [node], "rewards": {"reward": {"score": 1.0}}}
    rows = [
        {"task": {}, "traces": [{**trace, "info": {"evenhand": told}, "errors": errors}]}
        for told, errors in (({**dealt, "turns": [drawn]}, []), (dealt, [{"type": "TaskError"}]))
    ]
    log = read(lines(tmp_path / "traces.jsonl", rows))
    assert (log.source, len(set(log.group_N)), log.votes_N.sum()) == ("verifiers", 1, 1)
    assert (log.advantage_N[0], log.faults_N[0], len(log.owner_C)) == (0.5, 1, 1)
    assert log.lost_N.tolist() == [False, True]
    # A consumer's own group and step are those of the run.
    rows[0] |= {"group": {"id": "uuid"}, "run": {"type": "train", "work": {"step": 7}}}
    log = read(lines(tmp_path / "traces.jsonl", rows[:1]))
    assert log.step_N.tolist() == [7]


def test_plain_groups_ragged_and_missing(tmp_path):
    rows = [{"prompt_id": "p", "rewards": [1, 0, None]}, {"prompt_id": "p", "rewards": [0.25]}]
    log = read(lines(tmp_path / "x.jsonl", rows, end='\n{"prompt_id": "q", "rewa'))
    assert sizes(log) == [1, 3]
    assert log.votes_N.sum() == 3
    assert any("no reward" in note for note in log.notes)
    assert any("last line" in note for note in log.notes)


def test_plain_csv_both_ways(tmp_path):
    one, other = tmp_path / "a.csv", tmp_path / "b.csv"
    one.write_text("prompt_id,rewards\np,1;0;1\nq,[0.5;1]\n".replace("[0.5;1]", '"[0.5, 1]"'))
    other.write_text("group_id,reward,action\ng,1,a\ng,nan,a\nh,oops,b\n")
    assert sizes(read(one)) == [2, 3]
    log = read(other)
    assert sizes(log) == [1, 2]
    assert np.isnan(log.reward_N[1:]).all()
    assert any("no numbers" in note for note in log.notes)


@pytest.mark.parametrize("text", ["", '{"a": 1}\n', '{"rewards": 3}\n', "{broken\n{}\n"])
def test_what_is_no_log_is_refused_in_a_sentence(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=r"x\.jsonl"):
        read(path)
