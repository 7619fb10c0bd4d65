"""A rollout's place from the order of resets: the mixin's and the own trainer's numbers."""

from types import SimpleNamespace

import pytest

from evenhand.draws import Sharing, evaluation_schedule
from evenhand.errors import UserError
from evenhand.integrations.source import COLUMN
from evenhand.integrations.trl.seats import Seats, generation, with_schedules


def config(rank=0, rows=8, steps=1):
    return SimpleNamespace(
        num_generations=4,
        per_device_train_batch_size=rows,
        steps_per_generation=steps,
        process_index=rank,
        num_generations_eval=2,
        per_device_eval_batch_size=4,
    )


def seats(rank, rows, count, sharing="independent", split="train"):
    counter = Seats.of(config(rank, rows))
    said = with_schedules([{}], sharing, seed=5, split=split)[0][COLUMN]
    return [counter.take(said, "task") for _ in range(count)]


@pytest.mark.parametrize("sharing", ["independent", "paired", "blocks(2)", "persistent"])
def test_two_processes_have_the_seats_of_one(sharing):
    one = seats(0, 8, 24, sharing)
    two = [seats(rank, 4, 12, sharing) for rank in (0, 1)]
    for batch in range(3):
        assert one[batch * 8 : batch * 8 + 8] == [
            seat for rank in two for seat in rank[batch * 4 : batch * 4 + 4]
        ]
    # A group that is split over processes, six rows each: 0 0 0 0 1 1 | 1 1 2 2 2 2
    whole = seats(0, 12, 12, sharing)
    assert whole == [*seats(0, 6, 6, sharing), *seats(1, 6, 6, sharing)]
    assert one[13].schedule == Sharing.parse(sharing).schedule(5, 2, 1, 1)
    assert (one[13].step, one[13].group, one[13].index) == (2, 1, 1)


def test_an_evaluation_does_not_move_the_training_count_and_has_fixed_schedules():
    counter = Seats.of(config())
    rows = with_schedules([{}], "paired"), with_schedules([{}], "paired", split="held-out")
    train, held = (data[0][COLUMN] for data in rows)
    before = counter.take(train, "a")
    evaluated = [counter.take(held, "a") for _ in range(2)]
    after = counter.take(train, "a")
    assert (before.index, after.index) == (0, 1)
    assert [seat.schedule for seat in evaluated] == [evaluation_schedule("a", i) for i in (0, 1)]
    assert evaluated[0].group_id == "held-out/1/0"


@pytest.mark.parametrize("accumulation", [1, 2, 3, 4])
@pytest.mark.parametrize("every", [1, 2, 3, 4, 6])
def test_the_number_of_a_generation_follows_from_the_step(accumulation, every):
    made, known = 0, {0: 0}
    for micro in range(48):
        if micro % accumulation == 0:
            known[micro // accumulation] = made
        if micro % every == 0:
            made += 1
    for step, count in known.items():
        assert generation(step, accumulation, every) == count


def test_what_is_missing_is_said():
    with pytest.raises(UserError, match="with_schedules"):
        Seats.of(config()).take(None, "a")
    said = with_schedules([{}])[0][COLUMN]
    with pytest.raises(UserError, match="args=GRPOConfig"):
        Seats.of(None).take(said, "a")
    with pytest.raises(UserError, match="unknown sharing"):
        with_schedules([{}], "sometimes")
