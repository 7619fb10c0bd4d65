"""What replays say of luck: tables of rewards under fresh draws, kept beside a run's rollouts.

Open loop: the recorded actions of a group's G rollouts under the same M new schedules, a table a
group. Closed loop: R samples of the policy under each of S schedules, a table a task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.audit.finding import FEWEST, Finding, ratio_interval
from evenhand.audit.journal import lines_of
from evenhand.audit.log import Floats, Log, Loop, Table
from evenhand.audit.luck import judge, luck
from evenhand.errors import RecordError, UserError
from evenhand.statistics import luck_share

FOLDER = "replays"


def journal_of(run: Path, loop: Loop) -> Path:
    """Where a run's replays are kept."""
    return run / FOLDER / f"{loop}.jsonl"


def tables(run: Path) -> list[Table]:
    """The tables of a run's replays as far as they have come; RecordError for a broken file."""
    found: list[Table] = []
    groups: dict[Any, list[list[float | None]]] = {}
    opened, closed = journal_of(run, "open"), journal_of(run, "closed")
    try:
        for line in lines_of(opened):
            groups.setdefault((line["step"], line["group_id"]), []).append(line["rewards"])
        found += [Table("open", _floats(rows)) for rows in groups.values()]
        found += [Table("closed", _floats(line["rewards"])) for line in lines_of(closed)]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{opened.parent}: not a file of replays ({error})") from error
    return found


def said(run: Path, *, as_json: bool = False) -> str:
    """The findings on a run's replays, for the command; UserError where there are none."""
    held = tuple(tables(run))
    if not held:
        raise UserError(f"{run}: no group of several rollouts to replay")
    found = _found(held)
    if as_json:
        return json.dumps([f.to_json() for f in found], indent=1, allow_nan=False)
    return "\n".join(f.text() for f in found)


def lucks(log: Log) -> list[Finding]:
    """λ: from replays where there are any, one finding a loop; else from the log alone."""
    return _found(log.replays) or [luck(log)]


def components(reward_GM: Floats) -> tuple[float, float, float]:
    """(σ² of actions, of schedules, of their interaction) of a whole table of G rollouts and M
    schedules: two-way random effects, unbiased, so that each may be below 0.

    The actions of siblings are independent given the policy and the schedules are drawn anew, so
    the three are those of the reward's own decomposition (Hoeffding; Searle et al. 1992, 4.3).
    """
    rows, columns = reward_GM.shape
    row_G, column_M, grand = reward_GM.mean(1), reward_GM.mean(0), reward_GM.mean()
    rest_GM = reward_GM - row_G[:, None] - column_M + grand
    ms_rest = float((rest_GM**2).sum()) / ((rows - 1) * (columns - 1))
    ms_rows = columns * float(((row_G - grand) ** 2).sum()) / (rows - 1)
    ms_columns = rows * float(((column_M - grand) ** 2).sum()) / (columns - 1)
    return (ms_rows - ms_rest) / columns, (ms_columns - ms_rest) / rows, ms_rest


def _found(held: Sequence[Table]) -> list[Finding]:
    return [f for f in (_closed(held), _open(held)) if f]


def _open(held: Sequence[Table]) -> Finding | None:
    found = []
    for table in held:
        # A rollout with a lost replay is left out whole: what is lost votes nowhere.
        whole_AB = table.reward_AB[np.isfinite(table.reward_AB).all(1)]
        if table.loop == "open" and min(whole_AB.shape) >= 2:
            found.append(components(whole_AB))
    if not found:
        return None
    actions_M, schedules_M, both_M = np.array(found, dtype=np.float64).T
    total_M = actions_M + schedules_M + both_M
    evidence: dict[str, float] = {"groups": len(found)}
    says = f"the recorded actions of {len(found)} groups under fresh draws"
    if len(found) >= FEWEST and total_M.sum() > 0:
        share, low, high = ratio_interval(schedules_M, total_M, key="replays")
        evidence |= {"schedule_share": share, "schedule_low": low, "schedule_high": high}
        says += f"; a shared draw would hide {share:.0%} [{low:.0%}, {high:.0%}]"
    return judge("replays-open", schedules_M + both_M, total_M, says, **evidence)


def _closed(held: Sequence[Table]) -> Finding | None:
    closed = [t.reward_AB for t in held if t.loop == "closed"]
    if not closed:
        return None
    parts = [luck_share(reward_SR[None]) for reward_SR in closed]
    env_T = np.concatenate([p.environment_T for p in parts])
    pol_T = np.concatenate([p.policy_T for p in parts])
    whole_T = np.isfinite(env_T)
    if not whole_T.any():
        return None
    says = f"{int(whole_T.sum())} tables of fresh schedules and samples of the policy under them"
    total_T = env_T[whole_T] + pol_T[whole_T]
    return judge("replays-closed", env_T[whole_T], total_T, says, tables=int(whole_T.sum()))


def _floats(rows: list[list[float | None]]) -> Floats:
    return np.array([[np.nan if x is None else x for x in row] for row in rows], dtype=np.float64)
