"""Real TRL, real steps: the mixin over the shipped policy and its database."""

import warnings
from collections import Counter

import numpy as np
import pytest
import torch
import trl

from evenhand.advantages import advantages
from evenhand.audit import audit
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.trl import Evenhand, Settings, check, environment
from evenhand.integrations.trl.join import join
from evenhand.noise import FaultSession
from evenhand.policy.model import Policy
from evenhand.rollout.collect import Limits, Request, collect

from .runs import (
    GROUPS,
    NOISE,
    SEED,
    SIZE,
    SUITE,
    Trainer,
    config,
    draws,
    kept,
    ledger,
    paired_run,
    trained,
)

warnings.filterwarnings("ignore")


def test_the_rollouts_are_recorded_as_the_own_trainer_records_them():
    _, rollouts, _ = paired_run()
    assert len(rollouts) == 2 * GROUPS * SIZE
    for place, rollout in enumerate(rollouts):
        step, row = divmod(place, GROUPS * SIZE)
        group, index = divmod(row, SIZE)
        schedule = Sharing("paired").schedule(SEED, step + 1, group, index)
        assert (rollout.group_id, rollout.index) == (f"{step + 1}/{group}", index)
        assert rollout.schedule == schedule.id
        assert len(rollout.tokens) == len(rollout.mask)
        for turn in rollout.turns:
            if turn.end > turn.start:
                assert all(rollout.mask[turn.start : turn.end])
        assert sum(rollout.mask) == sum(turn.end - turn.start for turn in rollout.turns)
    assert Counter(r.stop for r in rollouts)["answered"] > len(rollouts) // 2


def test_draws_at_each_event_are_those_of_the_own_trainer():
    _, rollouts, _ = paired_run()
    # Replayed under the own trainer's schedule in the own environment, nothing differs.
    tasks = {task.id: task for task in SUITE.tasks("train")}
    for rollout in rollouts:
        step, group = map(int, rollout.group_id.split("/"))
        session = FaultSession(NOISE, Sharing("paired").schedule(SEED, step, group, rollout.index))
        world = SUITE.make()
        world.reset(tasks[rollout.task_id])
        for turn in rollout.turns:
            if turn.draw is None:
                continue
            tool = world.tools[turn.call.tool]
            result, draw = session.call(
                tool,
                world.resources(turn.call),
                turn.call.arguments,
                lambda stale, world=world, call=turn.call: world.call(call, stale=stale),
                can_be_stale=world.can_be_stale,
            )
            assert (result.text, draw) == (turn.result.text, turn.draw)
        assert rollout.reward_true == world.grade()
    # And the own collection, whose tokens are others, meets the same fates at shared events.
    requests = [
        Request(
            task=tasks[rollout.task_id],
            schedule=Sharing("paired").schedule(SEED, rollout.step, place // SIZE % GROUPS, 0),
            noise=NOISE,
            group_id=rollout.group_id,
            index=rollout.index,
            step=rollout.step,
            split="train",
            sharing="paired",
            sampling_key=("train", place),
        )
        for place, rollout in enumerate(rollouts)
    ]
    own = collect(Policy.load("warmstart"), SUITE, requests, seed=SEED, limits=Limits())

    def fates(some):
        return {(d.schedule, d.tool, d.resource, d.repeat): d.fault for d in draws(some)}

    mine, theirs = fates(own), fates(rollouts)
    common = mine.keys() & theirs.keys()
    assert len(common) >= 3 and any(mine[event] for event in common)
    assert all(mine[event] == theirs[event] for event in common)


def test_used_advantages_are_in_the_record_in_trls_table_and_in_its_log():
    import pandas

    trainer, rollouts, folder = paired_run()
    groups = [r.group_id for r in rollouts]
    codes = [sorted(set(groups)).index(group) for group in groups]
    wanted = advantages([r.reward for r in rollouts], codes, "leave_one_out")
    assert np.allclose([r.advantage for r in rollouts], wanted, atol=1e-6)
    assert np.any(wanted != 0)
    tables = [pandas.read_parquet(p) for p in sorted((folder / "completions").glob("*.parquet"))]
    table = pandas.concat(tables)
    assert np.allclose(table["advantage"], wanted, atol=1e-6)
    assert list(table["group_id"]) == groups
    assert list(table["schedule"]) == [r.schedule for r in rollouts]
    logged = [line for line in trainer.state.log_history if "evenhand/reward" in line]
    assert len(logged) == 2
    spread = np.std(wanted[: GROUPS * SIZE])
    assert logged[0]["evenhand/advantage_std"] == pytest.approx(spread, abs=1e-6)
    assert logged[0]["evenhand/schedules"] == GROUPS


def test_the_audit_reads_the_record_and_trls_table_alike():
    _, rollouts, folder = paired_run()
    record, table = audit(folder / "evenhand"), audit(folder / "completions")
    assert (record.source, table.source) == ("evenhand", "trl")
    assert record.rollouts == table.rollouts == len(rollouts)
    assert record.groups == table.groups == 2 * GROUPS
    coupled = next(f for f in record.findings if f.kind == "coupling")
    assert (coupled.estimate, coupled.verdict) == (1.0, "warning")


def test_advantages_per_token_reach_the_loss(tmp_path):
    shapes = []

    def late(output, advantages_B, rollouts):
        weights_BT = torch.linspace(0, 2, output["completion_ids"].shape[1])
        assert [r.index for r in rollouts] == [0, 1, 2, 3] * GROUPS
        return advantages_B[:, None] * weights_BT[None]

    class Looking(Trainer):
        def _compute_loss(self, model, inputs):
            shapes.append(inputs["advantages"].shape == inputs["completion_ids"].shape)
            return super()._compute_loss(model, inputs)

    settings = Settings(seed=SEED, per_token=late)
    trainer = trained(config(tmp_path), ledger(), Looking, evenhand=settings)
    assert shapes == [True]
    assert np.isfinite(trainer.state.log_history[0]["loss"])


def test_groups_of_unequal_size_and_adapters(tmp_path):
    from peft import LoraConfig

    asked = []

    def allocate(pilots):
        asked.append(pilots)
        return [0, 2 * SIZE]

    args = config(tmp_path, gradient_accumulation_steps=2, per_device_train_batch_size=SIZE)
    policy_before = Policy.load("warmstart").model.state_dict()
    trainer = trained(
        args,
        environment(SUITE),
        peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
        evenhand=Settings(sharing="paired", seed=SEED, allocate=allocate, advantage="centred"),
    )
    rollouts = kept(tmp_path / "evenhand")
    assert Counter(r.group_id for r in rollouts) == {"1/0": SIZE, "1/1": 3 * SIZE}
    second = [r for r in rollouts if r.group_id == "1/1"]
    assert [r.index for r in second] == list(range(3 * SIZE))
    assert len({r.schedule for r in second}) == 1
    assert asked[0][1] == [r.reward for r in second[:SIZE]]
    rewards = np.array([r.reward for r in second])
    assert np.allclose([r.advantage for r in second], rewards - rewards.mean())
    state = trainer.model.state_dict()
    assert any("lora_B" in name and bool(value.any()) for name, value in state.items())
    name = "model.layers.0.mlp.up_proj"
    base = state[f"base_model.model.{name}.base_layer.weight"]
    assert torch.equal(base, policy_before[f"{name}.weight"])


def test_an_allocation_that_cannot_be_trained_on_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"allocate gave \[1, 0\] for 2 groups"):
        trained(config(tmp_path), ledger(), evenhand=Settings(allocate=lambda pilots: [1, 0]))


def test_joined_batches_are_padded_on_their_own_sides():
    one = {
        "prompt_ids": torch.tensor([[1, 2]]),
        "completion_ids": torch.tensor([[3]]),
        "tool_mask": torch.tensor([[1]]),
        "advantages": torch.tensor([0.5]),
        "num_items_in_batch": torch.tensor(1),
    }
    two = {
        "prompt_ids": torch.tensor([[4, 5, 6]]),
        "completion_ids": torch.tensor([[7, 8]]),
        "tool_mask": torch.tensor([[1, 0]]),
        "advantages": torch.tensor([-0.5]),
        "num_items_in_batch": torch.tensor(1),
    }
    both = join(one, two, pad=9)
    assert both["prompt_ids"].tolist() == [[9, 1, 2], [4, 5, 6]]
    assert both["completion_ids"].tolist() == [[3, 9], [7, 8]]
    assert both["tool_mask"].tolist() == [[1, 1], [1, 0]]
    assert int(both["num_items_in_batch"]) == 2
    with pytest.raises(UserError, match="images"):
        join({**one, "pixel_values": torch.zeros(1, 2, 3)}, {**two, "pixel_values": 0}, 9)


def test_the_installed_trl_has_every_seam_and_one_without_is_named():
    check()
    check(Trainer)

    class Renamed(trl.GRPOTrainer):
        __module__ = "trl.trainer"

        def _calculate_rewards(self, inputs, prompts, completions):
            return None

    sentence = rf"^trl {trl.__version__}: Renamed lacks the seam _calculate_rewards\(.*\), needed"
    with pytest.raises(UserError, match=sentence) as caught:
        check(type("Mine", (Evenhand, Renamed), {}))
    assert str(caught.value).count(". ") == 0

    class Flattened(trl.GRPOTrainer):
        __module__ = "trl.trainer"

        def _compute_loss(self, model, inputs):
            return inputs["advantages"].unsqueeze(1)

    with pytest.raises(UserError, match=r"advantages of shape \(B, T\)"):
        check(Flattened)
