"""Gymnasium's environments as ours, ours as theirs, and OpenEnv's shape."""

from types import SimpleNamespace

import gymnasium
import pytest

from evenhand import environments
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.desk import Desk, Seat
from evenhand.integrations.stepping import StepEnvironment, Stepping
from evenhand.noise import Noise
from evenhand.records import Call, Task
from evenhand.rollout.workers import Workers


def poles(**settings):
    return StepEnvironment(
        lambda: gymnasium.make("CartPole-v1", max_episode_steps=20),
        score=lambda total, steps: total / 20,
        **settings,
    )


def played(environment, task, actions):
    environment.reset(task)
    seen = [environment.observation]
    for action in actions:
        seen.append(environment.call(Call("act", {"action": action})).value)
        if environment.finished:
            break
    return seen


def test_a_gymnasium_environment_is_one_of_ours():
    one, other = poles(), poles()
    task, another = Task("a", "poles", ""), Task("b", "poles", "")
    actions = [0, 1] * 10
    seen = played(one, task, actions)
    assert seen == played(other, task, actions) == played(one, task, actions)
    assert seen != played(other, another, actions)
    assert played(one, Task("c", "p", "", data={"seed": 4}), []) == played(
        other, Task("d", "p", "", data={"seed": 4}), []
    )
    played(one, task, actions)
    assert one.finished and one.grade() == 1.0
    assert one.call(Call("act", {"action": 0})).error == "FINISHED"
    assert one.state() != other.state()
    assert one.tools["act"].problem({"action": "left"}) is not None


def test_faults_fall_on_its_steps_as_the_schedule_says():
    noise = Noise.from_config({"tools": {"rate": 0.5, "weights": {"transient": 1.0}}})

    def fates(sharing, index):
        seat = Seat.training(Sharing.parse(sharing), 0, 1, 0, index)
        desk = Desk(poles(), seat, noise, Workers(1))
        desk.reset(Task("a", "poles", ""))
        for _ in range(6):
            desk.call(Call("act", {"action": 0}))
        desk.close()
        return [event.draw.fault for event in desk.events]

    assert fates("paired", 0) == fates("paired", 3)
    assert fates("independent", 0) != fates("independent", 3)


class Echo:
    """OpenEnv's shape: observations that hold reward and end."""

    def reset(self, seed=None, episode_id=None):
        self.episode_id, self.said = episode_id, []
        return SimpleNamespace(observation={"seed": seed}, reward=None, done=False)

    def step(self, action):
        self.said.append(action.text)
        return SimpleNamespace(
            observation={"said": self.said[:]}, reward=0.5, done=action.text == ""
        )


def test_openenvs_shape_is_one_of_ours():
    environment = StepEnvironment(
        Echo, action={"type": "string"}, decode=lambda text: SimpleNamespace(text=text)
    )
    environment.reset(Task("t", "echo", "", data={"seed": 7}))
    assert environment.observation == {"seed": 7}
    assert environment.inner.episode_id == "t"
    first = environment.call(Call("act", {"action": "hi"}))
    assert first.value == {"observation": {"said": ["hi"]}, "done": False}
    environment.call(Call("act", {"action": ""}))
    assert environment.finished and environment.grade() == 1.0


def test_one_of_ours_steps_as_theirs_do():
    suite = environments.suite("database")
    noise = {"tools": {"rate": 0.5, "weights": {"transient": 1.0}}}
    one, other = Stepping(suite, noise), Stepping(suite, noise)
    task = suite.tasks("train")[0]
    look = {"tool": "list_tables", "arguments": {}}

    def seen(environment, seed):
        prompt, info = environment.reset(seed=seed, episode_id=task.id)
        assert prompt == task.prompt and info["task_id"] == task.id
        return [environment.step(look)[0] for _ in range(8)]

    assert seen(one, 1) == seen(other, 1)
    assert len({str(seen(one, seed)) for seed in range(4)}) > 1
    gold = suite.gold(task)
    clean = Stepping(suite)
    clean.reset(seed=0, options={"task_id": task.id})
    for call in gold:
        _, reward, ended, cut, info = clean.step({"tool": call.tool, "arguments": call.arguments})
    assert (reward, ended, cut, info["lost"]) == (1.0, True, False, None)
    assert "BAD_CALL" in clean.step("nonsense")[0]
    with pytest.raises(UserError, match="no task"):
        clean.reset(episode_id="nowhere")
    assert clean.reset(seed=3)[1] == clean.reset(seed=3)[1]
