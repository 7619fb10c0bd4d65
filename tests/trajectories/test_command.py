"""The commands: bad lines named, skipped only on request, counted; gold and teachers; splits."""

import json
import re

import pytest

from evenhand.environments.demonstrators import DEMONSTRATORS
from evenhand.errors import RecordError, UserError
from evenhand.records import write_jsonl, write_parquet
from evenhand.trajectories.command import (
    import_command,
    split_command,
    stats_command,
    validate_command,
)
from evenhand.trajectories.record import Asked, Message, Trajectory, read, write
from tests.test_cli import run
from tests.trajectories.lines import ARGUMENTS, FORMATS, hermes, openai, sharegpt


def line(data):
    return json.dumps(data, ensure_ascii=False).encode() + b"\n"


def mixed(tmp_path):
    """Good lines of all formats, and one bad line of every kind."""
    file = tmp_path / "mixed.jsonl"
    file.write_bytes(
        line(openai())
        + line(hermes())
        + b"\n"
        + line(openai(tool="wether"))
        + line(sharegpt('{"town": 3}'))
        + line(openai()).replace("ö".encode(), b"\xf6")
        + b"{'messages': []}\n"
        + line({"messages": "none"})
        + line(openai(arguments='{"town": "Bonn"}'))
        + line(openai())[:-40]
    )
    return file


EXPECTED = [
    (4, "unknown tool"),
    (5, "arguments"),
    (6, "not UTF-8"),
    (7, "broken"),
    (8, "mislabelled"),
    (10, "torn"),
]


def test_the_first_bad_line_stops_an_import_and_nothing_is_written(tmp_path):
    file = mixed(tmp_path)
    with pytest.raises(
        RecordError, match=r"mixed\.jsonl, line 4: unknown tool: 'wether'.*--skip-bad"
    ):
        import_command([str(file)], tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_bad_lines_are_skipped_on_request_named_and_counted(tmp_path):
    file = mixed(tmp_path)
    told = import_command([str(file)], tmp_path / "out.jsonl", skip_bad=True)
    found = re.findall(r"line (\d+): ([^:]+):", told)
    assert [(int(number), kind) for number, kind in found] == EXPECTED
    assert "3 trajectories of 9 lines (hermes 1, openai 2)" in told
    assert "6 bad lines skipped" in told
    assert [each.source for each in read(tmp_path / "out.jsonl")] == [
        "mixed.jsonl:1", "mixed.jsonl:2", "mixed.jsonl:9",
    ]  # fmt: skip


def test_validate_names_all_and_fails(tmp_path):
    file = mixed(tmp_path)
    done = run("trajectories", "validate", file)
    assert done.returncode == 1
    assert done.stdout.startswith("9 lines: 3 good, 0 duplicates, 6 bad")
    good = tmp_path / "good.jsonl"
    good.write_bytes(line(openai()) + line(openai()))
    assert validate_command([str(good)]) == ("2 lines: 1 good, 1 duplicates, 0 bad", True)


def test_a_bad_file_is_one_sentence_and_exit_two(tmp_path):
    for arguments in ((tmp_path / "no.jsonl",), (mixed(tmp_path),), ("gold:nowhere",)):
        done = run("trajectories", "import", *arguments, "-o", tmp_path / "out")
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("evenhand: ") and done.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_another_label_than_asked_for_is_refused(tmp_path):
    file = tmp_path / "f.jsonl"
    for name, make in FORMATS.items():
        file.write_bytes(line(make()))
        import_command([str(file)], tmp_path / "out", format=name)
        for other in set(FORMATS) - {name}:
            with pytest.raises(RecordError, match=f"called {other}, but it is {name}"):
                import_command([str(file)], tmp_path / "out", format=other)
    with pytest.raises(UserError, match="format 'xml' is not one of"):
        import_command([str(file)], tmp_path / "out", format="xml")


def test_tools_of_a_file_are_declared_for_lines_without(tmp_path):
    data = openai()
    tools = data.pop("tools")
    file, schemas = tmp_path / "f.jsonl", tmp_path / "tools.json"
    file.write_bytes(line(data))
    with pytest.raises(RecordError, match="declared are none"):
        import_command([str(file)], tmp_path / "out")
    schemas.write_text(json.dumps(tools))
    import_command([str(file)], tmp_path / "out", tools=schemas)
    (made,) = read(tmp_path / "out")
    assert made.calls[0].arguments == ARGUMENTS and "weather" in made.known_tools()
    schemas.write_text('{"tools": [{"description": "?"}]}')
    with pytest.raises(UserError, match=r"tools\.json: not a JSON list of function schemas"):
        import_command([str(file)], tmp_path / "out", tools=schemas)


def test_gold_and_teachers_are_graded_by_the_environment(tmp_path):
    out = tmp_path / "out.jsonl"
    import_command(["gold:database/train", "hurried:database/train"], out, limit=30)
    made = list(read(out))
    gold = [each for each in made if each.actor == "gold"]
    hurried = [each for each in made if each.actor == "hurried"]
    assert len(gold) == 30 and all(each.reward == 1.0 for each in gold)
    # The demonstrator's habits leave room for learning; what equals gold is a duplicate.
    assert 5 < len(hurried) < 25 and 0 < sum(each.reward for each in hurried) < len(hurried)
    assert "validate" not in validate_command([str(out)])[0]
    with pytest.raises(UserError, match="couriers: only bfcl-broker, database"):
        import_command(["careful:couriers/train"], out)


@pytest.mark.parametrize("name", DEMONSTRATORS)
def test_the_careful_are_right_and_the_hurried_are_not_always(tmp_path, name):
    for actor in ("careful", "hurried"):
        import_command([f"{actor}:{name}/train"], tmp_path / actor, limit=20)
    careful, hurried = (
        [each.reward for each in read(tmp_path / a)] for a in ("careful", "hurried")
    )
    assert careful == [1.0] * 20
    assert 0 < sum(hurried) < len(hurried)


def test_dialogues_speak_and_hear(tmp_path):
    out = tmp_path / "out.jsonl"
    import_command(["gold:bfcl/train"], out, limit=8)
    for each in read(out):
        roles = [message.role for message in each.messages]
        assert each.reward == 1.0 and "respond" not in {asked.tool for asked in each.calls}
        assert roles[0] == "user" and roles[-1] == "assistant" and roles.count("user") >= 2
        assert roles.count("tool") == len(each.calls)


def test_tools_that_are_handed_over_later_are_known_and_not_printed(tmp_path):
    out = tmp_path / "out.jsonl"
    import_command(["gold:bfcl-trading/train"], out, limit=60)
    made = list(read(out))
    handed = [each for each in made if each.later]
    assert handed and all(each.reward == 1.0 for each in made)
    for each in handed:
        names = {tool["function"]["name"] for tool in each.later}
        assert not names & {tool["function"]["name"] for tool in each.tools}
        assert {asked.tool for asked in each.calls} <= set(each.known_tools())
    assert any(
        {tool["function"]["name"] for tool in each.later} & {asked.tool for asked in each.calls}
        for each in handed
    )


def rollouts(count):
    from evenhand.environments import suite
    from evenhand.policy.chat import call_text
    from evenhand.records import Rollout, Turn

    held = suite("database")
    for task in held.tasks("train")[:count]:
        world, turns = held.make(), []
        world.reset(task)
        for call in held.gold(task):
            text = call_text(call.tool, dict(call.arguments))
            turns.append(Turn(f"<think>\nso\n</think>\n{text}", call, result=world.call(call)))
        yield Rollout(
            task.id, "1/0", 0, environment="database", turns=turns, reward_true=1.0, stop="answered"
        )


def test_rollouts_are_read_as_jsonl_and_parquet(tmp_path):
    made = list(rollouts(6))
    write_jsonl(tmp_path / "r.jsonl", made)
    write_parquet(tmp_path / "r.parquet", made)
    for name in ("r.jsonl", "r.parquet"):
        import_command([str(tmp_path / name)], tmp_path / "out")
        read_back = list(read(tmp_path / "out"))
        import_command(["gold:database/train"], tmp_path / "gold", limit=6)
        gold = list(read(tmp_path / "gold"))
        assert [each.deeds for each in read_back] == [each.deeds for each in gold]
        assert {m.reasoning for each in read_back for m in each.messages} == {"", "so"}
    lost = made[0]
    lost.failure = "timeout"
    write_jsonl(tmp_path / "r.jsonl", [lost])
    with pytest.raises(RecordError, match="lost to infrastructure"):
        import_command([str(tmp_path / "r.jsonl")], tmp_path / "out")


def test_a_task_is_on_one_side_of_a_split(tmp_path):
    made = [
        Trajectory(f"task {n % 40}", (Message("user", "?"), Message("assistant", str(n))))
        for n in range(120)
    ]
    write(tmp_path / "all.jsonl", made)
    told = split_command(tmp_path / "all.jsonl", tmp_path / "parts", validation=0.2, test=0.2)
    sides = {
        name: {each.task for each in read(tmp_path / "parts" / f"{name}.jsonl")}
        for name in ("train", "validation", "test")
    }
    assert sum(map(len, sides.values())) == len(set().union(*sides.values())) == 40
    assert all(sides.values()) and "of 40 tasks" not in told
    # Unmoved by what else there is.
    write(tmp_path / "half.jsonl", made[:20])
    split_command(tmp_path / "half.jsonl", tmp_path / "less", validation=0.2, test=0.2)
    for name, tasks in sides.items():
        assert {each.task for each in read(tmp_path / "less" / f"{name}.jsonl")} <= tasks
    with pytest.raises(UserError, match="below 1 together"):
        split_command(tmp_path / "all.jsonl", tmp_path / "parts", validation=0.5, test=0.5)


def test_statistics_count_what_is_there(tmp_path):
    asked = (Asked("a", "{}", "1"), Asked("b", "{}", "2"))
    heard = (
        Message("tool", '{"error": "GONE"}', answers="2"),
        Message("tool", "fine", answers="1"),
    )
    made = [
        Trajectory(
            "t", (Message("user", "?"), Message("assistant", calls=asked), *heard), reward=0.5
        ),
        Trajectory("t", (Message("user", "?"), Message("assistant", "no", "why", "source"))),
    ]
    write(tmp_path / "t.jsonl", made)
    told = json.loads(stats_command([str(tmp_path / "t.jsonl")], as_json=True))
    assert told["trajectories"] == 2 and told["tasks"] == 1
    assert told["tools"]["b"] == {"calls": 1, "errors": 1, "trajectories": 1}
    assert told["tools"]["a"] == {"calls": 1, "errors": 0, "trajectories": 1}
    assert told["calls_a_trajectory"] == {"2": 1, "0": 1}
    assert told["errors"] == 0.5 and told["reasoned"] == 0.5 and told["reward"] == 0.5
    assert "| b | 1 | 1 | 1 |" in stats_command([str(tmp_path / "t.jsonl")])
