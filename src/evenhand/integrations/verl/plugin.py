"""Loaded by verl itself, through the entry point `verl.plugins`: names evenhand's advantages.

`algorithm.adv_estimator=evenhand_leave_one_out`, and so for each of `estimators.NAMES`. verl
swallows what a plug-in raises: `contract.check` says what went wrong.
"""

from __future__ import annotations

from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from evenhand.integrations.verl.estimators import NAMES, PREFIX, estimator

for _name in NAMES:
    if PREFIX + _name not in ADV_ESTIMATOR_REGISTRY:
        register_adv_est(PREFIX + _name)(estimator(_name))
