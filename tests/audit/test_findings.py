"""What findings say beyond a verdict: where c_G bends the objective, what drifts, what returns."""

import numpy as np
import pytest

from evenhand.audit import Builder, audit_log
from evenhand.audit.coupling import coupling
from evenhand.audit.directions import reversal
from evenhand.audit.drift import drift
from evenhand.theory.slope import slope


def log_of(rows):
    builder = Builder("planted")
    for row in rows:
        builder.add(**row)
    return builder.log()


def paired(spread, groups=400):
    """Groups of 8 under one schedule each, whose success is a half ± spread."""
    stream = np.random.default_rng(0)
    for g in range(groups):
        p = 0.5 + spread * (1 if stream.random() < 0.5 else -1)
        for i in range(8):
            yield {
                "task": g % 10,
                "group": g,
                "index": i,
                "reward": float(stream.random() < p),
                "schedule": f"{g}",
                "completion": str(i % 2),
            }


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_reversal_says_where_the_objective_bends(spread):
    bent = reversal(log_of(paired(spread))).evidence["objective"]
    assert bent["deviation"] == pytest.approx(spread, abs=0.06)
    assert bent["success"] == pytest.approx(0.5, abs=0.05)
    at = bent["success"] + bent["deviation"] * np.linspace(-2, 2, 21)
    assert bent["most"] == pytest.approx(slope(np.clip(at, 0, 1), 8).max())
    assert bent["least"] == pytest.approx(slope(np.clip(at, 0, 1), 8).min())
    if spread:
        # c_8 is √7 at 0 and 1 and least between them.
        assert bent["most"] > 2.4 > 2.2 > bent["least"]


def test_no_bend_is_told_where_rewards_are_no_successes():
    rows = ({**row, "reward": row["reward"] / 2} for row in paired(0.3))
    assert reversal(log_of(rows)).evidence["objective"] == {}


def test_drift_covers_the_other_kinds():
    stream = np.random.default_rng(0)

    def rows():
        for g in range(240):
            shares = stream.random() < g / 240
            for i in range(8):
                action = int(stream.random() < 0.5)
                chance = 0.5 + (action - 0.5) * (1 - g / 240)
                yield {
                    "step": g // 4,
                    "task": g % 10,
                    "group": g,
                    "index": i,
                    "reward": float(stream.random() < chance),
                    "completion": str(action),
                    "schedule": f"{g} {0 if shares else i}",
                }

    found = drift(log_of(rows()))
    assert found.verdict == "warning"
    assert found.evidence["z"]["coupling"] > 3
    assert {"reward", "dead groups", "coupling", "cross-talk"} <= found.evidence["z"].keys()
    assert "coupling rises" in found.evidence["says"]


@pytest.mark.parametrize("kind", ["run", "step", "group"])
def test_persistent_replay_is_told_from_sharing_in_a_group(kind):
    rows = (
        {
            "step": g // 4,
            "task": g % 5,
            "group": g,
            "index": i,
            "reward": float((g + i) % 2),
            "schedule": {"run": "run", "step": f"{g // 4}", "group": f"{g}"}[kind],
        }
        for g in range(40)
        for i in range(4)
    )
    found = {f.evidence["aspect"]: f for f in coupling(log_of(rows))}
    assert found["schedules"].verdict == "warning"
    expected = {"run": (1.0, 1.0), "step": (1.0, 0.0), "group": (0.0, 0.0)}[kind]
    persistent = found["persistent"].evidence
    assert (persistent["in_several_groups"], persistent["at_several_steps"]) == expected


def test_where_everybody_does_the_same_no_direction_is_made_up_of_rounding():
    stream = np.random.default_rng(0)
    rows = (
        {"task": g % 10, "group": g, "index": i, "completion": "right"}
        | {"reward": float(stream.random() < 0.9)}
        for g in range(80)
        for i in range(8)
    )
    found = next(f for f in audit_log(log_of(rows)).findings if f.kind == "reversal-risk")
    assert found.verdict == "not-identifiable"
