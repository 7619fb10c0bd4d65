"""What is kept and what is joined."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.errors import UserError
from evenhand.servers import Server
from evenhand.trajectories.augment import select_command, union_command
from evenhand.trajectories.record import Asked, Message, Trajectory, read, write
from evenhand.trajectories.select import Thresholds, select, union
from tests.trajectories.model_server import serving

MADE = st.lists(
    st.builds(
        lambda task, reward, calls: Trajectory(
            f"t{task}", (Message("assistant", calls=(Asked("a", "{}"),) * calls),), reward=reward
        ),
        st.integers(0, 3),
        st.none() | st.sampled_from([0.0, 0.5, 1.0]),
        st.integers(0, 3),
    ),
    max_size=12,
)


@given(MADE, st.sampled_from([0.0, 0.5, 1.0]), st.none() | st.integers(1, 3), st.booleans())
def test_thresholds_hold_and_the_best_of_a_task_stay(made, minimum, a_task, ungraded):
    kept = select(made, Thresholds(minimum, a_task, ungraded))
    numbers = [next(n for n, each in enumerate(made) if each is k) for k in kept]
    assert numbers == sorted(numbers)
    passing = [e for e in made if (ungraded if e.reward is None else e.reward >= minimum)]
    for task in {each.task for each in made}:
        mine = [each for each in kept if each.task == task]
        could = [each for each in passing if each.task == task]
        assert len(mine) == min(len(could), a_task or len(could))
        left = [each for each in could if not any(each is k for k in mine)]

        def rank(each):
            return (-(each.reward or 0.0), len(each.calls))

        assert not mine or not left or max(map(rank, mine)) <= min(map(rank, left))


@given(MADE, MADE)
def test_union_holds_each_once_and_the_originals_first(a, b):
    made = union(a, b)
    digests = [each.digest for each in made]
    assert len(digests) == len(set(digests))
    assert set(digests) == {each.digest for each in (*a, *b)}
    assert digests[: len({e.digest for e in a})] == list(dict.fromkeys(e.digest for e in a))


def test_a_judge_grades_and_its_grades_are_kept(tmp_path):
    said = [(Message("user", "?"), Message("assistant", str(n))) for n in range(4)]
    made = [Trajectory(f"t{n}", messages) for n, messages in enumerate(said)]
    write(tmp_path / "in.jsonl", made)
    replies = ["5", "Grade: 4.", "I would say 7 out of 10", "3"]
    with serving(lambda n, body: replies[n]) as (url, bodies):
        server = Server(url, "judge-1", a_minute=1e9)
        for _ in range(2):
            told = select_command(
                tmp_path / "in.jsonl", tmp_path / "out.jsonl", Thresholds(0.8), judge=server
            )
    assert len(bodies) == 4 and {body["temperature"] for body in bodies} == {0.0}
    assert [(e.task, e.reward) for e in read(tmp_path / "out.jsonl")] == [("t0", 1.0), ("t1", 0.8)]
    assert "2 of 4 trajectories; 1 had no grade" in told


def test_union_command_and_bad_thresholds(tmp_path):
    one = Trajectory("t", (Message("assistant", "x"),))
    write(tmp_path / "a", [one, Trajectory("u", ())])
    write(tmp_path / "b", [one])
    assert "2 trajectories, 1 duplicates" in union_command(
        [tmp_path / "a", tmp_path / "b"], tmp_path / "c"
    )
    with pytest.raises(UserError, match="at least 1"):
        Thresholds(a_task=0)
