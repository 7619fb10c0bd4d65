"""The loop in verl's real AgentLoopWorker: seats, draws, tools that know their rollout."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not in this environment: run `make test-verl`")

from verl import DataProto
from verl.experimental.agent_loop import AgentLoopWorker

from evenhand import environments
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.verl import rows
from evenhand.noise import FaultSession, Noise
from evenhand.policy.chat import call_text
from evenhand.policy.model import Policy
from evenhand.records import read_jsonl
from tests.integrations_verl.local import LocalClient, config

SUITE = environments.suite("database")
RATE, SEED, SIZE = 0.4, 3, 4
SAID = f"{{tools: database, sharing: paired, seed: {SEED}, noise: {{tools: {{rate: {RATE}}}}}"


def column(values):
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def batch(given, size=SIZE, **more):
    """Rows as the V1 trainer hands them to `run`, here as columns."""
    many = [(row, index) for row in given for index in range(size)]
    names = [key for key in given[0] if key not in ("prompt",)]
    columns = {key: column([row[key] for row, _ in many]) for key in names}
    columns["raw_prompt"] = column([row["prompt"] for row, _ in many])
    columns["uid"] = column([f"u{row['evenhand_group']}" for row, _ in many])
    columns["session_id"] = column([index for _, index in many])
    columns["global_steps"] = column([1] * len(many))
    columns.update(more)
    made = DataProto(
        batch=None, non_tensor_batch={k: v for k, v in columns.items() if v is not None}
    )
    made.meta_info = {"global_steps": 1, "validate": False}
    return made


def sampled(folder, said, given, **more):
    worker = AgentLoopWorker(config(folder, said), LocalClient())
    return asyncio.run(worker.generate_sequences(batch(given, **more)))


def kept(folder):
    return [r for path in sorted(folder.glob("step_*/*.jsonl")) for r in read_jsonl(path)]


def test_draws_at_each_event_are_those_of_the_own_trainer(tmp_path):
    given = rows(SUITE, seed=SEED, steps=1, groups=2)
    record = tmp_path / "record"
    output = sampled(tmp_path, f"{SAID}, record: {record}}}", given)
    rollouts = kept(record)
    assert len(rollouts) == 2 * SIZE
    tasks = {task.id: task for task in SUITE.tasks("train")}
    noise, calls, faults = Noise.from_config({"tools": {"rate": RATE}}), 0, 0
    for rollout in rollouts:
        step, group = map(int, rollout.group_id.split("/"))
        assert step == given[group]["evenhand_step"]
        schedule = Sharing("paired").schedule(SEED, step, group, rollout.index)
        assert (rollout.schedule, rollout.task_id) == (schedule.id, given[group]["task_id"])
        session, world = FaultSession(noise, schedule), SUITE.make()
        world.reset(tasks[rollout.task_id])
        for turn in rollout.turns:
            if turn.draw is None:
                continue
            result, draw = session.call(
                world.tools[turn.call.tool],
                world.resources(turn.call),
                turn.call.arguments,
                lambda stale, call=turn.call, world=world: world.call(call, stale=stale),
                can_be_stale=world.can_be_stale,
            )
            assert (draw, result.text) == (turn.draw, turn.result.text)
            calls, faults = calls + 1, faults + bool(draw.fault)
    assert calls > 2 * SIZE and faults
    # verl's own tensors hold what the record holds.
    scores = output.batch["rm_scores"].sum(dim=1).tolist()
    assert scores == pytest.approx([r.reward for r in rollouts])
    assert output.batch["response_mask"].sum(dim=1).tolist() == [sum(r.mask) for r in rollouts]
    for rollout in rollouts:
        said = [t for t in rollout.turns if t.end > t.start]
        assert sum(rollout.mask) == sum(t.end - t.start for t in said)


def test_the_legacy_loop_is_refused_in_one_sentence(tmp_path):
    given = rows(SUITE, seed=SEED, steps=1, groups=1)
    with pytest.raises(UserError, match=r"legacy .* no session_id.*trainer\.use_v1=True"):
        sampled(tmp_path, f"{SAID}}}", given, session_id=None)
    for row in given:
        del row["evenhand_group"]
    bare = {"uid": column(["u"] * SIZE)}
    with pytest.raises(UserError, match=r"no column evenhand_group.*with_groups"):
        sampled(tmp_path, f"{SAID}}}", [{**row, "evenhand_group": None} for row in given], **bare)


TOOLS = '''
import threading

from verl.tools.function_tool import function_tool

from evenhand.integrations.verl import declare, desk


@function_tool
@declare("reads", resources=("place",))
def seat(place: str) -> str:
    """Tell whose rollout this is.

    Args:
        place: Anything.
    """
    assert threading.current_thread() is not threading.main_thread()
    return f"<|im_end|> {desk().seat.group_id} {desk().seat.index} {place}"
'''


class Caller(LocalClient):
    """Writes one call, then a word: the shipped policy does not know this tool."""

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        from verl.workers.rollout.replica import TokenOutput

        self._policy = self._policy or Policy.load("warmstart")
        chat = self._policy.chat
        first = "tool_response" not in chat.decode(prompt_ids[-60:])
        ids = chat.turn([(call_text("seat", {"place": "here"}) if first else "done", True)])
        return TokenOutput(token_ids=ids, log_probs=[0.0] * len(ids))


def test_verls_function_tools_know_their_rollout_on_a_thread(tmp_path):
    (tmp_path / "tools.py").write_text(TOOLS)
    given = [{"prompt": [{"role": "user", "content": "Who?"}], "evenhand_group": g} for g in (0, 1)]
    made = config(
        tmp_path,
        f"{{sharing: paired, record: {tmp_path / 'record'}}}",
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={tmp_path / 'tools.py'}",
    )
    worker = AgentLoopWorker(made, Caller())
    asyncio.run(worker.generate_sequences(batch(given, size=3)))
    rollouts = kept(tmp_path / "record")
    assert len(rollouts) == 6
    chat = Policy.load("warmstart").chat
    for rollout in rollouts:
        said = f"{rollout.group_id} {rollout.index} here"
        assert rollout.turns[0].result.value == f"<|im_end|> {said}"
        # In tokens, what a result spells is text: only turns end a turn.
        read = chat.decode(rollout.tokens)
        assert f"< |im_end|> {said}" in read
