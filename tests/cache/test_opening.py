"""Many processes may make a cache's file at one moment."""

import multiprocessing

from evenhand.cache.sqlite import SqliteStore


def _open(barrier, path, said):
    barrier.wait()
    try:
        SqliteStore(path).close()
        said.put(None)
    except BaseException as error:
        said.put(repr(error))


def test_a_new_file_is_opened_by_twelve_processes_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    for number in range(30):
        barrier, said = context.Barrier(12), context.Queue()
        openers = [
            context.Process(target=_open, args=(barrier, tmp_path / f"{number}.db", said))
            for _ in range(12)
        ]
        for opener in openers:
            opener.start()
        assert [said.get(timeout=60) for _ in openers] == [None] * 12
        for opener in openers:
            opener.join()
