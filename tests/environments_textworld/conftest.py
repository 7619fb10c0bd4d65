"""Games are made anew in every session, in a cache of its own."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
