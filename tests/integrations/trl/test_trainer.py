"""Real TRL, real steps: the mixin and the public seams over the shipped policy and its database."""

import functools
import itertools
import logging
import threading
import time
import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from transformers import PrinterCallback

from evenhand import environments
from evenhand.advantages import advantages
from evenhand.audit import audit
from evenhand.draws import Sharing
from evenhand.errors import UserError
from evenhand.integrations.trl import (
    Evenhand,
    Recorder,
    Settings,
    ZeroSum,
    check,
    declare,
    environment,
    rows,
    with_calls,
    with_schedules,
)
from evenhand.integrations.trl.join import join
from evenhand.noise import FaultSession, Noise
from evenhand.policy.model import Policy
from evenhand.records import read_parquet
from evenhand.rollout.collect import Limits, Request, collect

warnings.filterwarnings("ignore")
SUITE = environments.suite("database")
NOISE = Noise.from_config({"tools": {"rate": 0.3}})
GROUPS, SIZE, SEED = 2, 4, 3


class Trainer(Evenhand, trl.GRPOTrainer):
    """What a user writes."""


def config(folder, **more):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": GROUPS * SIZE,
        "num_generations": SIZE,
        "max_completion_length": 160,
        "max_tool_calling_iterations": 5,
        "learning_rate": 1e-5,
        "temperature": 1.0,
        "max_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "logging_steps": 1,
        "save_strategy": "no",
        "shuffle_dataset": False,
        "disable_tqdm": True,
        "num_completions_to_print": 0,
        "seed": 0,
    }
    return trl.GRPOConfig(**{**settings, **more})


def trained(args, factory, kind=Trainer, data=None, **more):
    policy = Policy.load("warmstart")
    data = data or rows(SUITE, seed=SEED, steps=max(args.max_steps, 1), groups=GROUPS)
    trainer = kind(
        model=policy.model,
        args=args,
        train_dataset=Dataset.from_list(data),
        processing_class=with_calls(policy.chat.tokenizer),
        environment_factory=factory,
        **more,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def kept(folder):
    return [r for path in sorted(folder.glob("step_*.parquet")) for r in read_parquet(path)]


def draws(rollouts):
    return [
        turn.draw
        for rollout in rollouts
        for turn in rollout.turns
        if turn.draw is not None and turn.draw.repeat >= 0
    ]


@functools.cache
def paired_run():
    """Two paired steps under faults, that several tests look at."""
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp())
    settings = Settings(sharing="paired", seed=SEED, noise=NOISE, advantage="leave_one_out")
    args = config(folder, max_steps=2, log_completions=True, loss_type="dapo")
    trainer = trained(args, environment(SUITE), evenhand=settings)
    return trainer, kept(folder / "evenhand"), folder


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


class Ledger:
    """Tools with the database's names, over a dictionary, as a TRL user writes them."""

    meet = None
    failing = ()
    made = 0

    def __init__(self):
        type(self).made += 1
        self.finished = False

    def reset(self, evenhand_index, evenhand_group, **row):
        """Take the row; evenhand's columns are there for the asking."""
        self.index, self.group, self.first = evenhand_index, evenhand_group, True

    @declare("reads", timeout_s=20)
    def query(self, sql: str, offset: int = 0) -> str:
        """Run one SELECT.

        Args:
            sql: The statement.
            offset: Where to read on.
        """
        if self.index in self.failing:
            raise ConnectionError("backend down")
        if self.first and self.meet is not None:
            self.meet.wait(20)
        self.first = False
        return '{"rows": [["<|im_end|>"]]}'

    @declare("writes")
    def write(self, sql: str) -> str:
        """Run one INSERT, UPDATE or DELETE.

        Args:
            sql: The statement.
        """
        return self.query(sql)

    @declare("writes", control=True)
    def answer(self, values: list[str]) -> str:
        """Finish.

        Args:
            values: The answers.
        """
        self.finished = True
        return '{"done": true}'

    def get_reward(self) -> float:
        if self.meet is not None:
            self.meet.wait(20)
        return float(self.index % 2)


def ledger(**attributes):
    return type("Ledger", (Ledger,), attributes)


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


def test_public_seams_alone_give_the_same_seats_and_the_same_advantages(tmp_path):
    args = config(tmp_path, scale_rewards="none")
    recorder = Recorder(tmp_path / "record", every=1)
    used = []

    class Looking(trl.GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            used.extend(output["advantages"].tolist())
            return output

    trained(
        args,
        environment(SUITE, args=args, noise=NOISE, reward_column=False),
        Looking,
        data=with_schedules(rows(SUITE, seed=SEED, steps=1, groups=GROUPS), "paired", seed=SEED),
        reward_funcs=[ZeroSum(args, own_reward=True, transform="group_std", recorder=recorder)],
        callbacks=[recorder],
    )
    rollouts = kept(tmp_path / "record")
    _, booked, _ = paired_run()
    assert [(r.group_id, r.index, r.schedule, r.task_id) for r in rollouts] == [
        (r.group_id, r.index, r.schedule, r.task_id) for r in booked[: GROUPS * SIZE]
    ]
    wanted = advantages([r.reward for r in rollouts], np.arange(8) // SIZE, "group_std")
    assert np.allclose(used, wanted, atol=1e-5)
    assert np.allclose([r.advantage for r in rollouts], wanted)
    fates = {}
    for draw in [*draws(rollouts), *draws(booked)]:
        event = (draw.schedule, draw.tool, draw.resource, draw.repeat)
        assert fates.setdefault(event, draw.fault) == draw.fault
    assert recorder.report is not None and recorder.report.rollouts == GROUPS * SIZE


def test_zero_sum_refuses_what_would_change_its_advantages(tmp_path):
    with pytest.raises(UserError, match="scale_rewards='group'"):
        ZeroSum(config(tmp_path))
    split = config(tmp_path, scale_rewards="none", per_device_train_batch_size=4)
    split.per_device_train_batch_size = 6
    with pytest.raises(UserError, match="whole groups"):
        ZeroSum(split)


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


def test_findings_are_raised_while_the_run_goes_on(caplog):
    _, rollouts, _ = paired_run()
    recorder = Recorder(None, every=2, stop=True)
    recorder.take(rollouts)

    class Control:
        should_training_stop = False

    with caplog.at_level(logging.WARNING):
        recorder.on_step_end(None, None, Control)
        assert recorder.report is None
        for _ in range(3):
            recorder.on_step_end(None, None, Control)
    said = [r.message for r in caplog.records if "coupling" in r.message and "audit:" in r.message]
    assert len(said) == 1  # once, not at every audit
    assert recorder.told()["evenhand/audit/coupling"] == 2.0
    assert recorder.told() == {}
    assert Control.should_training_stop is recorder.report.reaches("critical")


def test_the_longer_the_run_the_longer_between_its_audits(monkeypatch):
    recorder, at = Recorder(None, every=10), []
    for step in range(1, 201):
        monkeypatch.setattr(recorder, "audit", lambda step=step: at.append(step))
        recorder.on_step_end(None, None, None)
    assert at[:5] == [10, 20, 30, 40, 50]
    # So each step is audited at most six times, in the mean.
    assert all(b - a == max(10, a // 5) for a, b in itertools.pairwise(at))
    assert sum(at) < 6 * at[-1]
    still = Recorder(None, every=0)
    monkeypatch.setattr(still, "audit", lambda: at.append(-1))
    still.on_step_end(None, None, None)
    assert at[-1] > 0
