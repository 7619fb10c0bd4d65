"""Environments of a user's own under the mixin: classes and functions, rewards, lost rollouts."""

import threading
import time
import warnings
from types import SimpleNamespace

import pytest

from evenhand.integrations.trl import Settings, declare, environment

from .runs import GROUPS, NOISE, SIZE, SUITE, Ledger, Trainer, config, kept, ledger, trained

warnings.filterwarnings("ignore")


def test_a_users_class_is_wrapped_lost_rollouts_vote_nowhere_and_tools_run_at_a_time(tmp_path):
    # Greedy: siblings do the same. All first calls must run at a time to pass the barrier, and so
    # must the gradings, of those that are not lost.
    kind = ledger(meet=threading.Barrier(6), failing=(1,))
    seen = []

    class Looking(Trainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append(output)
            return output

    trainer = trained(
        config(tmp_path, top_k=1, loss_type="dr_grpo"), kind, Looking, evenhand=Settings()
    )
    rollouts = kept(tmp_path / "evenhand")
    lost = [r.lost for r in rollouts]
    assert lost == [r.index == 1 for r in rollouts]
    assert {r.failure for r in rollouts if r.lost} <= {
        "query: ConnectionError: backend down",
        "write: ConnectionError: backend down",
    }
    # Rewards 0 1 0 1 less the lost one: 0 0 1.
    assert [r.advantage for r in rollouts[:SIZE]] == pytest.approx(
        [-1 / 3, None, -1 / 3, 2 / 3], nan_ok=True
    )
    (output,) = seen
    trained_on = output["completion_mask"] * output["tool_mask"]
    assert [int(n) == 0 for n in trained_on.sum(dim=1)] == lost
    assert int(output["num_items_in_batch"]) == int(trained_on.sum())
    # This loss is a mean over rows: 8 rows, 6 of which count.
    assert output["advantages"][0] == pytest.approx(-1 / 3 * 8 / 6)
    assert output["advantages"][1] == 0
    # The control token that a tool's result spelled stayed text.
    result = next(t.result for t in rollouts[0].turns if t.draw and t.draw.tool != "answer")
    assert "<|im_end|>" in result.text
    ends = trainer._tokenizer.convert_tokens_to_ids("<|im_end|>")
    for rollout in rollouts:
        tool_tokens = [t for t, m in zip(rollout.tokens, rollout.mask, strict=True) if not m]
        replies = sum(t.result is not None for t in rollout.turns) - 1
        assert tool_tokens.count(ends) <= 2 + replies


def test_reward_functions_see_no_environment_that_is_still_starting(tmp_path):
    standing = []

    def make():
        world = SUITE.make()
        reset, world.started = world.reset, False

        def slow(task):
            world.started = False
            time.sleep(0.3)
            reset(task)
            world.started = True

        world.reset = slow
        return world

    def look(completions, environments, **_):
        standing.extend(room.desk.environment.started for room in environments)
        return [0.0] * len(completions)

    suite = SimpleNamespace(name="slow", tools=SUITE.tools, make=make, tasks=SUITE.tasks)
    factory = environment(suite, reward_column=False)
    # Too short for a call, so that nothing else has waited; and one thread for all resets.
    args = config(tmp_path, max_completion_length=2)
    trained(args, factory, reward_funcs=[look], evenhand=Settings(tool_workers=1))
    assert standing == [True] * GROUPS * SIZE


def test_what_trl_does_not_ask_a_reward_of_is_not_graded(tmp_path):
    graded = []

    class Own(Ledger):
        def get_reward(self) -> float:
            graded.append(self.index)
            return 1.0

    zeros = [lambda completions, **_: [0.0] * len(completions)]
    factory = environment(Own, reward_column=False)
    trained(config(tmp_path, max_steps=2), factory, reward_funcs=zeros, evenhand=Settings())
    assert graded == []
    trained(config(tmp_path), environment(Own), evenhand=Settings())
    assert sorted(graded) == sorted([*range(SIZE)] * GROUPS)


def test_plain_functions_become_tools_that_know_their_rollout(tmp_path):
    seen = []

    @declare("reads")
    def query(sql: str, offset: int = 0) -> str:
        """Run one SELECT.

        Args:
            sql: The statement.
            offset: Where to read on.
        """
        return "[]"

    def reward(environments, evenhand_group, evenhand_index, evenhand_seed, **kwargs):
        seen.extend(zip(evenhand_group, evenhand_index, evenhand_seed, strict=True))
        return [float(room.desk.seat.index) for room in environments]

    settings = Settings(sharing="blocks(2)", seed=1, noise=NOISE, concurrent=False)
    trained(config(tmp_path), None, tools=[query], reward_funcs=[reward], evenhand=settings)
    rollouts = kept(tmp_path / "evenhand")
    assert [r.reward for r in rollouts] == [0, 1, 2, 3] * GROUPS
    assert [(group, index) for group, index, _ in seen] == [(r.group_id, r.index) for r in rollouts]
    assert len({seed for *_, seed in seen}) == 2 * GROUPS
    assert seen[0][2] == seen[2][2] != seen[1][2]
