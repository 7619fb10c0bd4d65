"""What may befall the file: killed writers, flipped bits, truncation, a full disk, a crowd."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from evenhand.cache import Cache, Session
from evenhand.cache.sqlite import SqliteStore, rebuild_file
from evenhand.cache.store import Bounds, new_owner
from evenhand.cache.values import decode
from evenhand.errors import UserError

from .toys import PURE, entry


def in_child(work):
    """Run `work` in a forked process; its exit status as `os.waitstatus_to_exitcode` has it."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def value(i):
    return {"n": i, "text": "x" * (i * 37 % 900)}


POINTS = ("leased", "put", "inserted", "evicted", "commit", "committed")


@pytest.mark.parametrize("nth", [1, 2, 9])
@pytest.mark.parametrize("point", POINTS)
def test_kill_9_at_every_write_point(tmp_path, point, nth):
    path, told = tmp_path / "c.db", tmp_path / "told"

    def work():
        visits = Counter()

        def hook(name):
            visits[name] += 1
            if visits[point] == nth and name == point:
                os.kill(os.getpid(), signal.SIGKILL)

        with told.open("a") as file:
            store = SqliteStore(path, Bounds(max_entries=100), hook=hook)
            for i in range(40):
                owner, e = new_owner(), entry(i, value(i))
                store.acquire(e.key, owner, 3600)
                if store.put(e, owner=owner) is not None:
                    file.write(f"{i}\n")
                    file.flush()

    assert in_child(work) == -signal.SIGKILL
    store = SqliteStore(path)
    whole = {i for i in range(40) if store.get(entry(i).key) is not None}
    for i in whole:
        e = store.get(entry(i).key)
        assert decode(e.kind, e.payload) == value(i)
    promised = {int(line) for line in told.read_text().split()}
    assert promised <= whole  # nothing whole is lost
    assert store.check().sound
    assert store.size() == (len(whole), sum(entry(i, value(i)).size for i in whole))
    # The dead writer's lease stops nobody.
    late = entry(max(whole, default=-1) + 1)
    assert store.acquire(late.key, new_owner(), 1) is True
    store.close()


COUNT = 80


def big(i):
    return bytes([i]) * (30_000 if i % 10 == 0 else 200 + 11 * i)


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "c.db"
    store = SqliteStore(path)
    for i in range(COUNT):
        store.put(entry(i, big(i)))
    store.close()
    return path.read_bytes()


def served(path):
    """{i: value} of what a damaged file still gives out; None when it cannot be opened."""
    try:
        store = SqliteStore(path)
    except UserError as error:
        assert "check --fix" in str(error)
        return None
    found = {}
    for i in range(COUNT):
        e = store.get(entry(i).key)
        if e is not None:
            found[i] = decode(e.kind, e.payload)
    store.close()
    return found


def assert_nothing_wrong(path):
    found = served(path)
    assert found is None or all(v == big(i) for i, v in found.items())
    return found


def assert_rebuilt(path, data):
    """After a repair: nothing wrong, and all that lies whole in one piece is there."""
    rebuild_file(path)
    found = assert_nothing_wrong(path)
    assert found is not None
    lying = {i for i in range(COUNT) if entry(i, big(i)).frame() in data}
    assert lying <= found.keys()
    return found


def clean(path):
    for tail in ("", "-wal", "-shm", ".damaged"):
        path.with_name(path.name + tail).unlink(missing_ok=True)


def test_1000_single_flipped_bits(tmp_path, whole_file):
    rng, path = random.Random(1), tmp_path / "c.db"
    lost = 0
    for n in range(1000):
        clean(path)
        data = bytearray(whole_file)
        at = rng.randrange(8 * len(data)) if n % 4 else rng.randrange(8 * 8192)
        data[at // 8] ^= 1 << at % 8
        path.write_bytes(data)
        found = assert_nothing_wrong(path)
        if found is None or len(found) < COUNT:
            lost += 1
        if n % 20 == 0:
            assert len(assert_rebuilt(path, bytes(data))) >= COUNT - 1
    assert 100 < lost < 1000  # the flips did reach entries


def test_1000_flipped_bits_at_once(tmp_path, whole_file):
    rng, path = random.Random(2), tmp_path / "c.db"
    for bits in (10, 100, 1000):
        clean(path)
        data = bytearray(whole_file)
        for _ in range(bits):
            at = rng.randrange(8 * len(data))
            data[at // 8] ^= 1 << at % 8
        path.write_bytes(data)
        assert_nothing_wrong(path)
        assert_rebuilt(path, bytes(data))


def test_a_truncated_file(tmp_path, whole_file):
    rng, path = random.Random(3), tmp_path / "c.db"
    cuts = [0, 1, 50, 100, 8191, 8192, 8193, len(whole_file) - 1]
    for cut in cuts + [rng.randrange(len(whole_file)) for _ in range(40)]:
        clean(path)
        path.write_bytes(whole_file[:cut])
        assert_nothing_wrong(path)
        clean(path)
        path.write_bytes(whole_file[:cut])
        assert_rebuilt(path, whole_file[:cut])


def test_a_truncated_or_flipped_wal(tmp_path):
    base, rng = tmp_path / "base.db", random.Random(4)

    def work():
        store = SqliteStore(base)
        for i in range(COUNT):
            store.put(entry(i, big(i)))
        os.kill(os.getpid(), signal.SIGKILL)  # leaves the WAL unfolded

    assert in_child(work) == -signal.SIGKILL
    wal = base.with_name("base.db-wal").read_bytes()
    assert len(wal) > 100_000
    path = tmp_path / "c.db"
    for n in range(30):
        clean(path)
        shutil.copy(base, path)
        torn = bytearray(wal[: rng.randrange(len(wal))] if n % 2 else wal)
        if not n % 2:
            at = rng.randrange(8 * len(torn))
            torn[at // 8] ^= 1 << at % 8
        path.with_name("c.db-wal").write_bytes(torn)
        assert_nothing_wrong(path)
    clean(path)
    shutil.copy(base, path)
    path.with_name("c.db-wal").write_bytes(wal)
    assert rebuild_file(path) == COUNT  # a repair reads the WAL too


def test_a_repair_brings_back_nothing_that_was_removed_or_replaced(tmp_path):
    path = tmp_path / "c.db"
    store = SqliteStore(path)
    for i in range(COUNT):
        store.put(entry(i, big(i)))
    for i in range(0, COUNT, 2):
        store.delete(entry(i).key)
    store.put(entry(1, b"newer", stored=2e9), replace=True)
    store.close()
    assert rebuild_file(path) == COUNT // 2
    store = SqliteStore(path)
    assert {e.key for e in store.entries()} == {entry(i).key for i in range(1, COUNT, 2)}
    assert store.get(entry(1).key).payload == b"newer"
    store.close()


def test_a_full_disk(tmp_path):
    path, report = tmp_path / "c.db", tmp_path / "report"
    store = SqliteStore(path)
    for i in range(20):
        store.put(entry(i, big(i)))
    store.close()

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = path.stat().st_size + 100_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        store = SqliteStore(path, busy_s=0.2)
        cache, seen = Cache(store), []
        for i in range(20, 60):
            served = Session(cache).call(PURE, {"a": i}, lambda i=i: big(i))
            seen.append(served.outcome)
            assert served.value == big(i)
        assert all(store.get(entry(i).key).payload == big(i) for i in range(20))
        report.write_text(json.dumps([Counter(seen), store.counters.errors]))

    assert in_child(work) == 0
    outcomes, errors = json.loads(report.read_text())
    assert errors > 0 and sum(outcomes.values()) == 40
    store = SqliteStore(path)
    assert store.check().sound
    assert all(store.get(entry(i).key).payload == big(i) for i in range(20))
    assert all(e.payload in {big(i) for i in range(60)} for e in store.entries())
    store.close()


FULL = """
import json, sys
from collections import Counter
from pathlib import Path
from evenhand.cache import Cache, Session
from evenhand.cache.sqlite import SqliteStore
from tests.cache.test_harm import big
from tests.cache.toys import PURE, entry

folder = Path(sys.argv[1])
store = SqliteStore(folder / "c.db", busy_s=0.2)
for i in range(20):
    store.put(entry(i, big(i)))
(folder / "ballast").write_bytes(b"x" * 800_000)
cache, seen = Cache(store), []
for i in range(20, 250):
    served = Session(cache).call(PURE, {"a": i}, lambda i=i: big(i))
    seen.append(served.outcome)
    assert served.value == big(i), i
errors = store.counters.errors
assert all(store.get(entry(i).key).payload == big(i) for i in range(20))
store.close()
(folder / "ballast").unlink()  # somebody makes room
store = SqliteStore(folder / "c.db")
assert store.check().sound
assert all(store.get(entry(i).key).payload == big(i) for i in range(20))
assert store.put(entry(251, big(251))) and store.get(entry(251).key).payload == big(251)
assert all(e.payload in {big(i) for i in [*range(250), 251]} for e in store.entries())
print(json.dumps([Counter(seen), errors]))
"""


def test_a_disk_that_is_really_full(tmp_path):
    """A file system of two megabytes, in a mount namespace of its own: ENOSPC, not a limit."""
    shell = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=2m none '{tmp_path}'"
    if subprocess.run([*shell, mount], capture_output=True).returncode:
        pytest.skip("this machine lets no user mount a file system of its own")
    done = subprocess.run(
        [*shell, f'{mount} && exec "$0" -c "$1" "$2"', sys.executable, FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    outcomes, errors = json.loads(done.stdout)
    assert errors > 0 and outcomes["uncached"] + outcomes.get("miss", 0) == 230
    assert outcomes["uncached"] > 50


def test_16_processes_on_50_keys(tmp_path):
    path, ran = tmp_path / "c.db", tmp_path / "ran"
    ran.touch()
    children = []
    for n in range(16):
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                rng = random.Random(n)
                cache = Cache(SqliteStore(path))
                seen = {}
                for key in rng.sample(range(50), 50):

                    def tool(key=key, n=n):
                        with open(ran, "ab") as file:
                            file.write(f"{key}\n".encode())
                        time.sleep(0.002)
                        return {"key": key, "by": n, "blob": "z" * (key * 100)}

                    seen[key] = Session(cache).call(PURE, {"a": key}, tool).value
                (tmp_path / f"seen-{n}").write_text(json.dumps(seen))
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in children] == [0] * 16
    everyone = [json.loads((tmp_path / f"seen-{n}").read_text()) for n in range(16)]
    assert all(seen == everyone[0] for seen in everyone)
    for key in range(50):
        told = everyone[0][str(key)]
        assert told["key"] == key and told["blob"] == "z" * (key * 100)
    assert sorted(int(line) for line in ran.read_text().split()) == list(range(50))
    store = SqliteStore(path)
    assert store.check().sound and store.size()[0] == 50
    store.close()


def test_check_fix_through_the_store(tmp_path, whole_file):
    path = tmp_path / "c.db"
    data = bytearray(whole_file)
    # The root of the entries' tree: SQLite loses every entry behind it.
    data[8192:8200] = b"\xff" * 8
    path.write_bytes(data)
    store = SqliteStore(path)
    assert not store.check().sound
    found = store.check(fix=True)
    assert found.saved is not None and found.saved >= COUNT - 5
    assert store.check().sound
    store.close()
    assert path.with_name("c.db.damaged").exists()
