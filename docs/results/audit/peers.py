"""What two published log auditors say of the same generated runs, beside evenhand's answer.

    python docs/results/audit/peers.py VENV > docs/results/audit/peers.md

VENV is a virtual environment with `pip install rlvr-audit==0.1.0 rldoctor==0.2.0`. rlvr-audit reads
rewards by prompt; rl-doctor reads scalars by step, so it is given the ones that TRL logs of these
rewards (mean, std, share of groups without contrast). rlvr-audit is asked
twice: with rewards alone, and with hashes of prompts and answers beside them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from evenhand.audit.builder import Builder
from evenhand.audit.planted import ALARM, PLANTS, Plant
from evenhand.audit.report import audit_log
from evenhand.draws import keyed_stream

CHOSEN = (
    "fair coin, few actions",
    "skilled pair",
    "cache in a group",
    "success-only cache",
    "persistent schedule",
    "shared tool, std",
    "fills leak",
    "mis-grouped",
    "flaky grader",
    "dead groups",
)


class Kept(Builder):
    """A Builder that keeps the rows as they come."""

    def __init__(self) -> None:
        super().__init__("planted")
        self.rows: list[dict[str, object]] = []

    def add(self, **row: object) -> None:
        """A rollout."""
        self.rows.append(row)
        super().add(**row)  # type: ignore[arg-type]


def made(plant: Plant) -> Kept:
    """The plant's run of seed 0."""
    rows = Kept()
    plant.make(keyed_stream(0, "planted", plant.name), rows)
    return rows


def groups(rows: Kept) -> Iterator[list[dict[str, object]]]:
    """Rollouts, group by group."""
    held: dict[object, list[dict[str, object]]] = {}
    for row in rows.rows:
        held.setdefault(row["group"], []).append(row)
    yield from held.values()


def ours(rows: Kept) -> str:
    """Kinds that evenhand warns of."""
    found = audit_log(rows.log()).findings
    told = Counter(f"{f.verdict} {f.kind}" for f in found if f.verdict in ALARM)
    return ", ".join(told) or "nothing found"


def rlvr(venv: Path, rows: Kept, folder: Path, hashes: bool) -> str:
    """How many prompts got which of rlvr-audit's verdicts."""
    file, size = folder / "rewards.jsonl", 0
    prompts: dict[object, list[dict[str, object]]] = {}
    for group in groups(rows):
        size = len(group)
        prompts.setdefault(group[0]["task"], []).extend(group)
    with open(file, "w") as out:
        for task, members in prompts.items():
            line = {
                "prompt_id": str(task),
                "rewards": [r["reward"] for r in members],
            }
            if hashes:
                line["prompt_hashes"] = [str(r["task"]) for r in members]
                line["trajectory_hashes"] = [
                    str(r.get("completion", n)) for n, r in enumerate(members)
                ]
            out.write(json.dumps(line) + "\n")
    command = [venv / "bin" / "rlvr-audit", "inspect", "--file", file, "--G", str(size)]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True)
    if done.returncode:
        return "fails: " + done.stderr.strip().splitlines()[-1]
    told = json.loads(done.stdout)["verdict_histogram"]
    return ", ".join(f"{verdict} {count}" for verdict, count in told.items())


def doctor(venv: Path, rows: Kept, folder: Path) -> str:
    """What rl-doctor finds."""
    file, every = folder / "scalars.jsonl", list(groups(rows))
    with open(file, "w") as out:
        for step, start in enumerate(range(0, len(every) - 3, 4), 1):
            table = [[float(str(r["reward"])) for r in g] for g in every[start : start + 4]]
            flat = np.concatenate([np.array(g) for g in table])
            scalars = {
                "step": step,
                "reward": float(flat.mean()),
                "reward_std": float(np.mean([np.std(g) for g in table])),
                "frac_reward_zero_std": float(np.mean([len(set(g)) == 1 for g in table])),
                "num_generations": len(table[0]),
            }
            out.write(json.dumps(scalars) + "\n")
    command = [venv / "bin" / "rl-doctor", "diagnose", file, "--no-color", "-f", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return "fails: " + (done.stderr or done.stdout).strip().splitlines()[-1]
    told = json.loads(done.stdout)["findings"]
    said = [
        f"{f['severity'].lower()}: {f['title']}"
        for f in told
        if f["severity"] not in ("OK", "SKIPPED")
    ]
    skipped = sum(f["severity"] == "SKIPPED" for f in told)
    return f"{'; '.join(said) or 'nothing found'} ({skipped} of {len(told)} detectors skipped)"


def main() -> None:
    """Print the table."""
    venv = Path(sys.argv[1])
    print("| planted | evenhand | rlvr-audit 0.1.0 | the same, with hashes | rl-doctor 0.2.0 |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as held:
        for plant in (p for name in CHOSEN for p in PLANTS if p.name == name):
            rows, folder = made(plant), Path(held)
            cells = (
                ours(rows),
                rlvr(venv, rows, folder, False),
                rlvr(venv, rows, folder, True),
                doctor(venv, rows, folder),
            )
            print(f"| {plant.name} | " + " | ".join(c.replace("|", "/") for c in cells) + " |")


if __name__ == "__main__":
    main()
