"""The parts that no rollout is needed for: seats, the tool server's desks, groups, the contract."""

import asyncio
import contextvars
import dataclasses
import math
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from tests.integrations_verifiers import NEEDED

pytest.importorskip("verifiers", reason=NEEDED)

import verifiers
import verifiers.v1 as vf

from evenhand import environments
from evenhand.draws import Sharing, evaluation_schedule
from evenhand.errors import UserError
from evenhand.integrations.verifiers import (
    Dealing,
    Dealt,
    Seated,
    SuiteConfig,
    SuiteTaskset,
    SuiteTasksetConfig,
    SuiteTools,
    assign,
    contract,
    score_group,
    weigh,
)
from evenhand.integrations.verifiers.traces import KEY, record
from evenhand.records import Call, Rollout
from evenhand.training.tasks import training_tasks

SUITE = environments.suite("database")
TASK = SUITE.tasks("train")[0]


@pytest.mark.parametrize("sharing", ["independent", "paired", "blocks(2)", "persistent"])
def test_a_seat_is_the_own_trainers(sharing):
    for index in range(4):
        seat = Dealing(sharing=sharing, seed=3, step=2, group=1, index=index).seat("any", "t")
        assert seat.schedule == Sharing.parse(sharing).schedule(3, 2, 1, index)
        assert (seat.group_id, seat.index) == ("2/1", index)


def test_without_a_place_only_what_depends_on_it_is_refused():
    paired = [Dealing(sharing="paired", seed=3).seat(name, "t").schedule for name in "ab"]
    assert paired == [Sharing("paired").schedule(3, 1, 0, 0)] * 2
    alone = [Dealing(seed=3).seat(name, "t") for name in "aba"]
    assert alone[0].schedule == alone[2].schedule != alone[1].schedule
    with pytest.raises(UserError, match="by the environment Seated"):
        Dealing(sharing="blocks(2)").seat("a", "t")
    held = Dealing(split="held-out", index=1).seat("a", "t")
    assert held.schedule == evaluation_schedule("t", 1) and held.group_id == "held-out/1/0"
    with pytest.raises(UserError, match="unknown sharing"):
        Dealing(sharing="sometimes")


def test_a_taskset_lays_out_the_own_trainers_tasks_and_slots_know_their_places():
    config = SuiteTasksetConfig(id="x", sharing="paired", seed=4, steps=2, groups=3)
    tasks = list(SuiteTaskset(config))
    pool = SUITE.tasks("train")
    own = [task.id for step in (1, 2) for task in training_tasks(pool, 4, step, 3)]
    assert [task.data.id for task in tasks] == own
    places = [(task.data.evenhand.step, task.data.evenhand.group) for task in tasks]
    assert places == [(step, group) for step in (1, 2) for group in range(3)]
    assert len({task.key for task in tasks}) == 6
    slots = Seated.slots(None, tasks[0], 3)
    assert [slot.task.data.evenhand.index for slot in slots] == [0, 1, 2]
    assert Seated.slots(None, tasks[0])[0].task is tasks[0]
    held = list(SuiteTaskset(SuiteTasksetConfig(id="x", pool="test")).take(2))
    assert held[0].data.evenhand.split == "evaluation-test"
    with pytest.raises(UserError, match="must be 'train'"):
        list(SuiteTaskset(SuiteTasksetConfig(id="x", pool="test", steps=1)))


def server(**settings):
    tools = SuiteTools(SuiteConfig(**settings))
    asyncio.run(tools.setup())
    return tools


def state(name="r", index=0, sharing="paired"):
    dealing = Dealing(sharing=sharing, seed=1, index=index)
    return Dealt(rollout=name, dealing=dealing, task=asdict(TASK))


def ask(tools, told, call):
    return tools._call(told, contextvars.copy_context(), call)


def test_a_cache_shares_what_the_schedule_says_and_keeps_the_draws(tmp_path):
    calls = [Call("list_tables"), Call("describe", {"table": "orders"}), Call("list_tables")]

    def met(tools, name, index, sharing):
        told = state(name, index, sharing)
        for call in calls:
            ask(tools, told, call)
        return [(t["result"], t["draw"]["fault"]) for t in told.events], [
            t["draw"]["tier"] for t in told.events
        ]

    noise = {"tools": {"rate": 0.4}}
    plain = server(noise=noise)
    kept = server(noise=noise, cache=tmp_path / "c.db")
    bare = [met(plain, f"r{i}", i, "paired") for i in range(2)]
    cached = [met(kept, f"r{i}", i, "paired") for i in range(2)]
    assert [each[0] for each in bare] == [each[0] for each in cached]
    assert "exact" in cached[1][1] and not any(t for each in bare for t in each[1])
    tools = SuiteTools(SuiteConfig(noise=noise))
    assert tools.server_name == ""  # tools keep their names


def test_an_episode_ends_once_and_its_standing_is_told():
    tools, told = server(), state()
    assert ask(tools, told, Call("no_such")).error == "UNKNOWN_TOOL"
    assert ask(tools, told, Call("describe", {"nothing": 1})).error == "BAD_ARGUMENTS"
    assert told.reward == 0.0 and not told.finished
    for call in SUITE.gold(TASK):
        ask(tools, told, call)
    assert told.finished and (told.reward, told.reward_true) == (1.0, 1.0)
    assert ask(tools, told, Call("list_tables")).error == "FINISHED"
    assert not tools._tables
    made = Rollout.from_json(record(told))
    assert (made.stop, made.reward_true, len(made.turns)) == (
        "answered",
        1.0,
        2 + len(SUITE.gold(TASK)),
    )


def test_a_server_that_forgot_a_rollout_loses_it():
    tools, first, second = server(rollouts=1), state("a"), state("b")
    ask(tools, first, Call("list_tables"))
    ask(tools, second, Call("list_tables"))
    assert ask(tools, first, Call("list_tables")).error == "LOST"
    assert first.lost and Rollout.from_json(record(first)).stop == "lost"
    assert ask(tools, second, Call("list_tables")).error is None


def trace(reward, tokens=(2, 1), *, ok=True, trainable=True):
    nodes = [
        vf.MessageNode(message=vf.UserMessage(content="?"), token_ids=[1, 2], mask=[False] * 2),
        *(
            vf.MessageNode(
                message=vf.AssistantMessage(content="x"),
                sampled=True,
                token_ids=[0] * (n + 1),
                mask=[False] + [True] * n,
            )
            for n in tokens
        ),
    ]
    agent = SimpleNamespace(trainable=trainable)
    return SimpleNamespace(id="t", nodes=nodes, reward=reward, ok=ok, agent=agent, info={})


def episode(*traces, group="g"):
    name = SimpleNamespace(id=group) if group else None
    return SimpleNamespace(id="e", traces=list(traces), group=name)


def test_a_group_is_weighed_and_what_is_lost_votes_nowhere():
    good, bad, lost, other = trace(1.0), trace(0.0), trace(9.0, ok=False), trace(1.0, ())
    used = score_group([episode(good), episode(bad), episode(lost), episode(other)])
    assert used[:2] == [1.0, -1.0] and math.isnan(used[2]) and math.isnan(used[3])
    assert [node.advantages for node in good.nodes] == [None, [1.0, 1.0], [1.0]]
    assert all(node.advantages is None for node in lost.nodes)
    spread = score_group(
        [episode(good), episode(bad)], "centred", per_token=lambda t, a: [0.0, a, 2 * a]
    )
    assert spread == [0.5, -0.5]
    assert [node.advantages for node in good.nodes] == [None, [0.0, 0.5], [1.0]]
    with pytest.raises(UserError, match="3 sampled tokens, and 2"):
        assign(good, [1.0, 2.0])
    with pytest.raises(UserError, match="names no group"):
        weigh([episode(good, group=None)])
    weigh([episode(good), episode(bad), episode(trace(5.0), group="h")])
    assert good.nodes[1].advantages == [1.0, 1.0]
    assert KEY == "evenhand"


def test_the_installed_verifiers_has_every_seam_and_one_without_is_named(monkeypatch):
    contract.check()
    assert verifiers.__version__ in contract.TRIED
    fields = dict(vf.MessageNode.model_fields)
    fields.pop("advantages")
    monkeypatch.setattr(vf.MessageNode, "__pydantic_fields__", fields)
    with pytest.raises(UserError) as raised:
        contract.check()
    said = str(raised.value)
    assert said.startswith(
        f"verifiers {verifiers.__version__} lacks the seam MessageNode.advantages"
    )
    assert said.endswith("install one of 0.4.0") and "\n" not in said
    monkeypatch.undo()
    for seam in contract.SEAMS:
        broken = dataclasses.replace(seam, holds=lambda: False)
        with pytest.raises(UserError, match="lacks the seam"):
            contract.check([broken])
    monkeypatch.delattr(vf.Toolset, "register")
    monkeypatch.delattr(vf.Toolset.__mro__[1], "register")
    with pytest.raises(UserError, match=r"Toolset.register\(mcp\)"):
        contract.check()
