"""Threads for tools: held jobs share one, slow ones hold up nobody, none is lost or run twice."""

import functools
import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.rollout.workers import Job, Workers


def job(work):
    return Job(lambda _: work(), lambda: None)


def wait(workers, jobs, seconds=20.0):
    end = time.monotonic() + seconds
    for each in jobs:
        while not each.done and time.monotonic() < end:
            workers.wait_any([each], 1.0)
    assert all(each.done for each in jobs)


def test_held_jobs_wait_for_a_release_and_quick_ones_share_one_thread_in_their_order():
    workers, order, threads = Workers(8), [], set()

    def note(n):
        threads.add(threading.get_ident())
        order.append(n)
        return n

    for batch in (range(50), range(50, 80)):  # the second finds the thread asleep
        jobs = [workers.hold(job(lambda n=n: note(n))) for n in batch]
        time.sleep(0.05)
        assert len(order) == batch.start
        start = time.monotonic()
        workers.release(patience_s=20.0)
        assert time.monotonic() - start < 10
        assert all(each.done for each in jobs)  # the release waited for them
        assert [each.result for each in jobs] == list(batch)
    assert order == list(range(80))
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_many_quick_jobs_that_together_take_longer_than_the_patience_are_no_slow_job():
    workers, threads = Workers(8), set()

    def work():
        threads.add(threading.get_ident())
        time.sleep(0.1)

    jobs = [workers.hold(job(work)) for _ in range(20)]
    workers.release(patience_s=1.0)
    assert all(each.done for each in jobs) and len(threads) == 1


def test_as_soon_as_one_is_slow_each_that_is_left_gets_a_thread():
    workers, barrier = Workers(6), threading.Barrier(6)
    jobs = [workers.hold(job(lambda: barrier.wait(20))) for _ in range(6)]
    start = time.monotonic()
    workers.release()
    assert time.monotonic() - start < 5
    wait(workers, jobs)
    assert all(each.error is None for each in jobs)


def test_others_quick_jobs_keep_nobody_waiting_for_a_slow_one():
    workers, hung, busy = Workers(8), threading.Event(), True

    def others():
        while busy:
            wait(workers, [workers.submit(job(lambda: None))])

    crowd = [threading.Thread(target=others) for _ in range(3)]
    for each in crowd:
        each.start()
    try:
        workers.hold(job(lambda: hung.wait(30)))
        start = time.monotonic()
        workers.release(patience_s=0.1)
        assert time.monotonic() - start < 10
    finally:
        busy = False
        hung.set()
        for each in crowd:
            each.join()


def test_a_release_starts_what_others_held_and_does_not_wait_for_a_job_that_hangs():
    workers, hung = Workers(1), threading.Event()
    first = workers.hold(job(lambda: hung.wait(30)))
    second = workers.hold(job(lambda: "done"))
    start = time.monotonic()
    threading.Thread(target=workers.release).start()
    workers.release()
    assert time.monotonic() - start < 5
    assert not second.done
    while first.started is None:
        time.sleep(0.001)
    assert workers.abandon(first)  # its thread is replaced
    wait(workers, [second])
    assert second.result == "done"
    hung.set()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.sampled_from(["hold", "hold", "slow", "submit", "release", "fail"]), max_size=30),
)
def test_each_job_runs_once_whatever_the_order_of_holding_and_releasing(count, moves):
    workers, ran, jobs = Workers(count), [], []

    def work(n, kind):
        ran.append(n)
        if kind == "slow":
            time.sleep(0.004)  # longer than the patience
        if kind == "fail":
            raise ValueError(n)
        return n

    for move in moves:
        if move == "release":
            workers.release(patience_s=0.001)
            continue
        made = job(functools.partial(work, len(jobs), move))
        jobs.append((move, made))
        (workers.submit if move == "submit" else workers.hold)(made)
    workers.release(patience_s=0.001)
    wait(workers, [made for _, made in jobs])
    assert sorted(ran) == list(range(len(jobs)))
    for n, (move, made) in enumerate(jobs):
        assert made.result == (None if move == "fail" else n)
        assert isinstance(made.error, ValueError) == (move == "fail")
    workers.close()
