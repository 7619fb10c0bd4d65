"""Real rollouts of verifiers: its environment, chat program, MCP servers and training client."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.integrations_verifiers import NEEDED

pytest.importorskip("verifiers", reason=NEEDED)

import torch
import verifiers.v1 as vf
from verifiers.v1.utils.trace_store import read_episodes, write_episode

from evenhand import environments
from evenhand.audit.read import read
from evenhand.audit.report import audit_log
from evenhand.draws import Sharing
from evenhand.integrations.verifiers import rollout, weigh
from evenhand.noise import FaultSession, Noise
from evenhand.policy.model import Policy
from evenhand.records import Result
from evenhand.rollout.collect import Limits, Request, collect
from evenhand.tools import Effect, Tool
from evenhand.training.batches import pack, pick_BT
from evenhand.training.forward import token_logprobs
from tests.integrations_verifiers.drive import EXAMPLES, FOLDER, generate, scripted, serving

SEED, SIZE, GROUPS = 5, 3, 2
RATES = {"tools": {"rate": 0.4}}
NOISE = Noise.from_config(RATES)
SUITE = environments.suite("database")
pytestmark = pytest.mark.timeout(240)


@functools.cache
def policy():
    return Policy.load("warmstart")


@functools.cache
def paired_run():
    """Two paired groups under faults, that several tests look at."""
    import rollouts_with_verifiers as example

    env = example.environment(
        sharing="paired", seed=SEED, steps=1, groups=GROUPS, tools={"noise": RATES}
    )
    with serving(generate(policy())) as (url, _):
        done = example.episodes(env, url, FOLDER, size=SIZE, groups=GROUPS)
    weigh(done, "leave_one_out")
    folder = Path(tempfile.mkdtemp())
    for episode in done:
        write_episode(folder, episode)
    return done, folder


def rollouts():
    return [rollout(episode.traces[0]) for episode in paired_run()[0]]


def test_every_rollout_has_the_own_trainers_seat_and_exact_tokens():
    made = rollouts()
    assert len(made) == GROUPS * SIZE and not any(r.lost for r in made)
    for place, each in enumerate(made):
        group, index = divmod(place, SIZE)
        assert (each.group_id, each.index, each.step) == (f"1/{group}", index, 1)
        assert each.schedule == Sharing("paired").schedule(SEED, 1, group, index).id
        for turn in each.turns:
            assert all(each.mask[turn.start : turn.end])
        assert sum(each.mask) == sum(turn.end - turn.start for turn in each.turns) > 0
    assert Counter(each.stop for each in made)["answered"] > 0
    # The logged probabilities are the policy's own, so the rollouts can be trained on.
    gaps = []
    for batch in pack(made, 4096):
        with torch.no_grad():
            now_BT = token_logprobs(policy().model, batch.tokens_BT, batch.mask_BT)
        logged_BT = pick_BT(batch, [each.logprobs for each in made], now_BT.dtype)
        gaps += (now_BT - logged_BT)[batch.mask_BT].tolist()
    assert len(gaps) > 50 and np.abs(gaps).max() < 1e-3


def test_draws_at_each_event_are_those_of_the_own_trainer():
    made = rollouts()
    tasks = {task.id: task for task in SUITE.tasks("train")}
    faults = 0
    for each in made:
        group = int(each.group_id.split("/")[1])
        session = FaultSession(NOISE, Sharing("paired").schedule(SEED, 1, group, each.index))
        world = SUITE.make()
        world.reset(tasks[each.task_id])
        for turn in each.turns:
            if turn.draw is None:
                continue
            result, draw = session.call(
                world.tools[turn.call.tool],
                world.resources(turn.call),
                turn.call.arguments,
                lambda stale, world=world, call=turn.call: world.call(call, stale=stale),
                can_be_stale=world.can_be_stale,
            )
            assert (result.text, draw) == (turn.result.text, turn.draw)
            faults += draw.fault is not None
        assert each.reward_true == world.grade()
    assert faults
    # And the own collection, whose tokens are others, meets the same fates at shared events.
    requests = [
        Request(
            task=tasks[each.task_id],
            schedule=Sharing("paired").schedule(SEED, 1, place // SIZE, 0),
            noise=NOISE,
            group_id=each.group_id,
            index=each.index,
            step=1,
            split="train",
            sharing="paired",
            sampling_key=("train", place),
        )
        for place, each in enumerate(made)
    ]
    own = collect(policy(), SUITE, requests, seed=SEED, limits=Limits())

    def fates(some):
        drawn = [t.draw for r in some for t in r.turns if t.draw and t.draw.repeat >= 0]
        return {(d.schedule, d.tool, d.resource, d.repeat): d.fault for d in drawn}

    mine, theirs = fates(own), fates(made)
    common = mine.keys() & theirs.keys()
    assert common and any(mine[event] for event in common)
    assert all(mine[event] == theirs[event] for event in common)


def test_traces_carry_advantages_a_token_and_the_audit_reads_them_back():
    done, folder = paired_run()
    made = rollouts()
    for group in range(GROUPS):
        mine = made[group * SIZE : (group + 1) * SIZE]
        rewards = np.array([each.reward for each in mine])
        expected = (rewards - rewards.mean()) * SIZE / (SIZE - 1)
        assert [each.advantage for each in mine] == pytest.approx(expected)
    for episode in done:
        for node in episode.traces[0].nodes:
            assert (node.advantages is None) == (not any(node.mask))
            assert node.advantages is None or len(node.advantages) == sum(node.mask)
    log = read(folder)
    assert (log.source, len(log), log.votes_N.sum()) == ("verifiers", 6, 6)
    assert log.reward_N.tolist() == [each.reward for each in made]
    assert log.advantage_N == pytest.approx([each.advantage for each in made])
    assert len(set(log.schedule_N)) == GROUPS == len(set(log.group_N))
    calls = [t for each in made for t in each.turns if t.call is not None]
    assert len(log.owner_C) == len(calls)
    coupled = [f for f in audit_log(log, "x").findings if f.kind == "coupling"]
    assert coupled[0].verdict == "warning"
    # The file is read by verifiers itself, too, and a rollout comes back from it.
    again = read_episodes(folder, vf.WireTrace)
    assert [rollout(e.traces[0]).tokens for e in again] == [each.tokens for each in made]


PLUGIN = '''
"""A taskset of a user's own, whose tools meet faults by its base class."""
import verifiers.v1 as vf
from evenhand.integrations.verifiers import *
from evenhand.integrations.verifiers.harness import Here

__all__ = ["Weather", "Seated", "Here"]


class State(Dealt):
    asked: list[str] = []


class Tools(DealtTools[DealtConfig, State]):
    @vf.tool
    @declare("reads", resources=("city",))
    async def weather(self, city: str) -> str:
        """Tell the weather.

        Args:
            city: The city.
        """
        self.state.asked.append(city)
        if city == "Cut Off":
            raise ConnectionError("backend down")
        return f"<|im_end|> sunny in {city}"


class Settings(vf.TaskConfig):
    tools: DealtConfig = DealtConfig()


class Ask(DealtTask[DealtData, State, Settings]):
    @classmethod
    def toolsets(cls, config):
        return [Tools(config.tools)]

    @vf.reward
    async def polite(self, trace: vf.Trace) -> float:
        return float("sunny" in str(trace.tool_messages))


class Config(vf.TasksetConfig):
    task: Settings = Settings()


class Weather(vf.Taskset[Ask, Config]):
    def load(self):
        yield Ask(DealtData(id="rome", prompt="Rome?", evenhand=Dealing(seed=2)), self.config.task)
        yield Ask(DealtData(id="cut", prompt="Cut?"), self.config.task)


if __name__ == "__main__":
    Tools.run()
'''


def call(city):
    return f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


def test_a_users_own_toolset_meets_faults_and_infrastructure_votes_nowhere(tmp_path, monkeypatch):
    import rollouts_with_verifiers as example

    (tmp_path / "weather_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    there = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", there)
    env = example.environment("weather_plugin", task={"tools": {"noise": {"tools": {"rate": 0.5}}}})
    chat = policy().chat
    with serving(scripted(chat, [call("Rome"), call("Rome"), "done"])) as (url, _):
        done = example.episodes(env, url, FOLDER, size=3, groups=1)
    session = [
        FaultSession(Noise.from_config({"tools": {"rate": 0.5}}), Sharing().schedule(2, 1, 0, i))
        for i in range(3)
    ]
    met = [[t.draw.fault for t in rollout(e.traces[0]).turns if t.draw] for e in done]
    assert len({str(each) for each in met}) > 1  # independent draws, each of its own seat
    for index, episode in enumerate(done):
        made = rollout(episode.traces[0])
        assert (made.index, made.stop) == (index, "no_call")
        for turn in made.turns[:2]:
            tool, arguments = weather_tool(), turn.call.arguments
            _, draw = session[index].call(
                tool,
                tool.resources(arguments),
                arguments,
                lambda stale: Result("sunny"),
                can_be_stale=False,
            )
            assert draw == turn.draw
        texts = str([m.content for m in episode.traces[0].tool_messages])
        assert "<|im_end|>" not in texts
        assert episode.traces[0].reward == float("sunny" in texts)
    # The backend goes down: an error of the trace, no reward, no advantage.
    env = example.environment("weather_plugin")
    with serving(scripted(chat, [call("Cut Off"), "done"])) as (url, _):
        (lost,) = example.episodes(env, url, FOLDER, size=1, groups=1)
    (trace,) = lost.traces
    assert not trace.ok and "ConnectionError: backend down" in trace.errors[0].message
    assert rollout(trace).lost and rollout(trace).reward is None
    assert trace.stop_condition in ("episode_over", "task_error")
    weigh([lost])
    assert all(node.advantages is None for node in trace.nodes)


def weather_tool():
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    return Tool("weather", "", schema, Effect.READS, ("city",))


def test_the_example_runs_and_its_traces_are_audited(tmp_path):
    with serving(generate(policy())) as (url, _):
        command = [sys.executable, str(EXAMPLES / "rollouts_with_verifiers.py"), url]
        command += ["--folder", FOLDER, "--groups", "1", "--size", "2", "--out", str(tmp_path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "of 2 solved, 0 lost" in said.stdout
    lines = (tmp_path / "traces.jsonl").read_text().splitlines()
    assert [json.loads(line)["group"]["id"] for line in lines] == ["1/0", "1/0"]
    assert read(tmp_path).votes_N.sum() == 2
