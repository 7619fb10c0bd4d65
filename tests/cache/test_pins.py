"""A busy reader's pin: there while it reads, gone after, and never a reason to read old values."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from evenhand.cache import pins
from evenhand.cache.frames import Entry, describe
from evenhand.cache.keys import digest
from evenhand.cache.sqlite import SqliteStore

KEY = digest("pinned")


def entry(payload: bytes, key: bytes = KEY) -> Entry:
    return Entry(key, 2, payload, describe("t", "{}"))


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "c.db")
    store.put(entry(b"one"))
    yield store
    store.close()


def wal_starts_anew(path) -> bool:
    """Whether another reader holds nothing of the WAL."""
    other = sqlite3.connect(path, timeout=0)
    busy = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    other.close()
    return not busy


def test_held_while_read_and_let_go_after(store):
    assert not store._pin.held and wal_starts_anew(store.path)
    store.put(entry(b"two", digest("other")))  # so that the WAL holds something

    def read():
        assert store.get(KEY).payload == b"one"
        return store._pin.held

    until(read)
    assert not wal_starts_anew(store.path)
    until(lambda: not store._pin.held)
    assert wal_starts_anew(store.path)
    until(read)  # and held again when somebody reads again


def test_another_process_is_seen_at_once(store):
    until(lambda: store.get(KEY) and store._pin.held)
    script = (
        "import sys; from pathlib import Path; from evenhand.cache.sqlite import SqliteStore;"
        "from evenhand.cache.frames import Entry, describe; s = SqliteStore(Path(sys.argv[1]));"
        "s.put(Entry(bytes.fromhex(sys.argv[2]), 2, sys.argv[3].encode(), describe('t', '{}')),"
        "replace=True); s.close()"
    )
    stop = threading.Event()

    def keep_reading():
        while not stop.is_set():
            store.get(KEY)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    for word in ("two", "three"):
        command = [sys.executable, "-c", script, str(store.path), KEY.hex(), word]
        subprocess.run(command, check=True)
        assert store.get(KEY).payload == word.encode()
    stop.set()
    reader.join()


def test_the_wal_stays_bounded_under_constant_reading(store):
    """20,000 pages are written, and a WAL that nobody may begin anew would hold them all."""
    stop = threading.Event()

    def keep_reading():
        while not stop.is_set():
            store.get(KEY)
            time.sleep(0.0005)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    largest = 0
    for number in range(200):
        store.put(entry(os.urandom(800_000), digest("big", number)), replace=True)
        store.delete(digest("big", number))
        wal = store.path.with_name(store.path.name + "-wal")
        largest = max(largest, wal.stat().st_size if wal.exists() else 0)
    stop.set()
    reader.join()
    assert largest < 80_000_000


def test_forks_of_a_reading_process_read(store):
    until(lambda: store.get(KEY) and store._pin.held)
    children = []
    for _ in range(60):
        store.get(KEY)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                fresh = not store._pin.held
                for _ in range(50):
                    assert store.get(KEY).payload == b"one"
                until(lambda: store.get(KEY) and store._pin.held)
                code = 0 if fresh else 2
            finally:
                os._exit(code)
        children.append(pid)
    assert {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children} == {0}
    until(lambda: store.get(KEY) and store._pin.held)


def test_closing_leaves_nothing_open(tmp_path):
    store = SqliteStore(tmp_path / "c.db")
    store.put(entry(b"one"))
    until(lambda: store.get(KEY) and store._pin.held)
    store.close()
    assert not store._pin.held and [p.name for p in tmp_path.iterdir()] == ["c.db"]


def test_a_file_that_is_gone_is_not_made_anew(tmp_path):
    pin = pins.Pin(tmp_path / "none.db")
    pin.stir()
    time.sleep(3 * pins.RENEW_S)
    pin.drop()
    assert not pin.held and not list(tmp_path.iterdir())
