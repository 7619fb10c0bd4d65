"""TRL's public seams alone: seats by the order of resets, advantages as rewards."""

import warnings

import numpy as np
import pytest
import trl

from evenhand.advantages import advantages
from evenhand.errors import UserError
from evenhand.integrations.trl import Recorder, ZeroSum, environment, rows, with_schedules

from .runs import GROUPS, NOISE, SEED, SIZE, SUITE, config, draws, kept, paired_run, trained

warnings.filterwarnings("ignore")


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
