"""Advantages under their names, in verl's own `compute_advantage`, loaded by its entry point."""

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not in this environment: run `make test-verl`")

import torch
from verl import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from evenhand.advantages import advantages
from evenhand.errors import UserError
from evenhand.integrations.verl.estimators import NAMES

# Groups of 4, 3 and 1 in a mixed order, and two rows that verl adds as padding.
UIDS = ["a", "b", "a", "b", "c", "a", "a", "b", "pad", "pad"]
REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
REAL = len(UIDS) - 2


def batch(rewards=REWARDS):
    mask = torch.zeros(len(UIDS), 6, dtype=torch.long)
    mask[:REAL, 0] = mask[:REAL, 3] = 1
    scores = torch.zeros(mask.shape)
    scores[:, 3] = torch.tensor(rewards)
    made = DataProto.from_dict(
        {"token_level_rewards": scores, "response_mask": mask},
        {"uid": np.array(UIDS, dtype=object)},
    )
    return made, mask


@pytest.mark.parametrize("name", NAMES)
def test_verls_own_function_gives_evenhands_advantages(name):
    data, mask = batch()
    labels = np.unique(UIDS[:REAL], return_inverse=True)[1]
    expected = advantages(REWARDS[:REAL], labels, name)
    assert np.any(expected)
    keys = [f"{uid}_{i}_0" for i, uid in enumerate(UIDS)]
    for used in (
        compute_advantage(data, adv_estimator=f"evenhand_{name}"),
        compute_advantage_for_multi_trajectories(data, keys, f"evenhand_{name}"),
    ):
        got = used.batch["advantages"]
        assert got[:REAL, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
        assert torch.equal(got, got[:, :1] * mask), "one number a rollout, on its own tokens alone"
        assert torch.equal(used.batch["returns"], got)


def test_a_reward_that_is_not_a_number_votes_nowhere():
    data, _ = batch([float("nan"), *REWARDS[1:]])
    got = compute_advantage(data, adv_estimator="evenhand_leave_one_out").batch["advantages"][:, 0]
    rest = [i for i in range(REAL) if i]
    labels = np.unique([UIDS[i] for i in rest], return_inverse=True)[1]
    expected = advantages([REWARDS[i] for i in rest], labels, "leave_one_out")
    assert got[0] == 0
    assert got[rest].tolist() == pytest.approx(expected.tolist())


def test_without_a_uid_there_is_one_sentence():
    data, mask = batch()
    with pytest.raises(UserError, match="no uid"):
        get_adv_estimator_fn("evenhand_centred")(data.batch["token_level_rewards"], mask)
