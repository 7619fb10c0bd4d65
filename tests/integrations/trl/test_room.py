"""A batch's environments: resets and gradings at a time, and what a reset shows or breaks."""

import threading
import time
from types import SimpleNamespace
from typing import ClassVar

from evenhand.draws import Sharing
from evenhand.integrations.desk import Seat
from evenhand.integrations.trl import Booking, environment
from evenhand.rollout.workers import Workers


class Rollcall:
    """A suite's environment whose resets, after the first, must all run at a time."""

    tools: ClassVar = {}
    can_be_stale = finished = False
    barrier = threading.Barrier(4)
    shows = False

    def __init__(self):
        self.resets = 0

    def reset(self, task):
        self.resets += 1
        if self.shows:
            self.observation = f"reset {self.resets}"
        elif self.resets > 1:
            self.barrier.wait(20)

    def grade(self):
        if not self.shows:
            self.barrier.wait(20)  # so must the gradings
        return float(self.resets)

    def close(self):
        pass


def rooms_of(kind, count=4, together=True):
    suite = SimpleNamespace(name="rollcall", tools={}, make=kind, tasks=lambda pool: [])
    made, workers = environment(suite), Workers(8)

    def booking(index):
        seat = Seat.training(Sharing("paired"), 0, 1, 0, index)
        return Booking(seat, workers=workers, awaited=True, together=together)

    rooms = [made() for _ in range(count)]

    def reset(room, task="t"):
        return room.reset(evenhand=booking(rooms.index(room)), task_id=task)

    return rooms, reset


def test_resets_and_gradings_of_a_batch_run_at_a_time():
    rooms, reset = rooms_of(Rollcall)
    assert [reset(room) for room in rooms] == [None] * 4  # the first tells whether it shows
    assert [reset(room) for room in rooms] == [None] * 4
    assert [room.lost for room in rooms] == [None] * 4
    for room in rooms:
        room.desk.start_grading()
    assert [room.get_reward() for room in rooms] == [2.0] * 4
    assert [room.get_reward() for room in rooms] == [2.0] * 4  # not graded again


def test_a_reset_goes_on_while_nobody_waits():
    began = threading.Event()

    class Telling(Rollcall):
        def reset(self, task):
            self.resets += 1
            if self.resets == 2:
                began.set()

    (room,), reset = rooms_of(Telling, 1)
    reset(room)
    assert not began.is_set()
    reset(room)
    assert began.wait(20)


def test_where_tools_run_one_after_another_so_do_resets():
    class Counting(Rollcall):
        done = 0

        def reset(self, task):
            time.sleep(0.05)
            type(self).done += 1

    rooms, reset = rooms_of(Counting, 3, together=False)
    for n in range(6):
        reset(rooms[n % 3])
        assert Counting.done == n + 1


def test_what_a_reset_shows_is_waited_for():
    rooms, reset = rooms_of(type("Showing", (Rollcall,), {"shows": True}))
    for turn in (1, 2):
        assert [reset(room) for room in rooms] == [f"reset {turn}"] * 4


def test_a_first_reset_that_breaks_tells_nothing_of_what_resets_show():
    class Late(Rollcall):
        shows = True

        def reset(self, task):
            if task.id == "down":
                raise ConnectionError("no container")
            super().reset(task)

    rooms, reset = rooms_of(Late, 2)
    assert reset(rooms[0], "down") is None and rooms[0].lost
    assert [reset(room) for room in rooms] == ["reset 1"] * 2
    assert [reset(room) for room in rooms] == ["reset 2"] * 2


def test_a_reset_that_breaks_later_loses_its_rollout_alone():
    class Breaking(Rollcall):
        def reset(self, task):
            self.resets += 1
            if self.resets == 2 and task.id == "down":
                raise ConnectionError("no container")

    rooms, reset = rooms_of(Breaking, 2)
    for task in ("t", "down"):
        assert [reset(room, task) for room in rooms[:1]] == [None]
        assert reset(rooms[1], "t") is None
    assert [room.lost for room in rooms] == ["reset: ConnectionError: no container", None]
    assert rooms[0].get_reward() is None
    reset(rooms[0])
    assert rooms[0].lost is None  # nothing of it is left


def test_a_reset_that_hangs_loses_its_rollout_when_the_time_is_up(monkeypatch):
    held = threading.Event()

    class Hanging(Rollcall):
        def reset(self, task):
            self.resets += 1
            if self.resets == 2:
                held.wait(30)

    rooms, reset = rooms_of(Hanging, 3)
    for room in rooms:
        reset(room)
    monkeypatch.setattr("evenhand.integrations.desk.RESET_S", 2.0)
    start = time.monotonic()
    for room in rooms:
        reset(room)
    assert time.monotonic() - start < 1.5  # nobody waits yet
    assert [room.lost for room in rooms] == ["timeout: reset took longer than 2 s"] * 3
    assert time.monotonic() - start < 5  # and they are waited for at a time
    held.set()
