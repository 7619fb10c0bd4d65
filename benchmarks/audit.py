"""The audit's claims: a million rollouts in bounded memory, and a start without torch.

Writes TRL's completions parquet (a file a step), then measures in processes of their own: reading
the files with pyarrow alone, and auditing them. Peak RSS is that of the process (VmHWM).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SIZE, PER_FILE = 8, 10_000

READ = """
import pyarrow.parquet as pq, sys
for file in sorted(__import__('pathlib').Path(sys.argv[1]).glob('*.parquet')):
    pq.read_table(file)
"""
AUDIT = """
import sys
from pathlib import Path
from evenhand.audit import audit
report = audit(Path(sys.argv[1]))
assert report.rollouts == int(sys.argv[2]), report.rollouts
assert 'torch' not in sys.modules
print(report.headline, file=sys.stderr)
"""
TAIL = """
print([l for l in open('/proc/self/status') if l.startswith('VmHWM')][0].split()[1])
"""


def write(folder: Path, rollouts: int) -> None:
    draws = np.random.default_rng(0)
    filler = "and then it thought about it for a while, " * 4
    for step in range(rollouts // PER_FILE):
        tasks = np.repeat(draws.integers(0, 5000, PER_FILE // SIZE), SIZE)
        action = draws.integers(0, 3, PER_FILE)
        reward = (draws.random(PER_FILE) < (action + 1) / 4).astype(np.float64)
        mean = reward.reshape(-1, SIZE).mean(1).repeat(SIZE)
        table = {
            "step": np.full(PER_FILE, step + 1),
            "prompt": [f"task {t}: {filler}" for t in tasks],
            "completion": [f"{filler} answer {a}" for a in action],
            "right": reward,
            "advantage": reward - mean,
        }
        pq.write_table(pa.table(table), folder / f"completions_{step + 1:05d}.parquet")


def measured(code: str, *arguments: object) -> tuple[float, float]:
    """(seconds, peak MB) of a process."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code + TAIL, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.perf_counter() - began, int(done.stdout.split()[-1]) / 1024


def start(*arguments: object) -> float:
    """Median seconds of `evenhand ARGUMENTS`."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        command = [sys.executable, "-m", "evenhand", *map(str, arguments)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    rollouts = parser.parse_args().rollouts
    with tempfile.TemporaryDirectory() as held:
        whole, part = Path(held, "whole"), Path(held, "part")
        for folder, count in ((whole, rollouts), (part, rollouts // 2)):
            folder.mkdir()
            write(folder, count)
        small = Path(held, "small.csv")
        small.write_text("prompt_id,rewards\n" + "p,1;0;1;0\n" * 50)
        read, read_mb = measured(READ, whole)
        _, half_mb = measured(AUDIT, part, rollouts // 2)
        audit, audit_mb = measured(AUDIT, whole, rollouts)
        print(f"{rollouts} rollouts: read {read:.1f} s, {read_mb:.0f} MB; audit {audit:.1f} s")
        print(f"figure audit_help_start {start('audit', '--help'):.2f} s goal <=1")
        print(f"figure audit_small_log {start('audit', small):.2f} s goal <=1")
    print(f"figure audit_seconds {audit:.1f} s goal <=60")
    print(f"figure audit_vs_reading_alone {audit / read:.1f} ratio goal <=30")
    print(f"figure audit_peak_memory {audit_mb:.0f} MB goal <=512")
    print(f"figure audit_peak_memory_vs_half_the_log {audit_mb / half_mb:.2f} ratio goal <=1.1")
    return 0


if __name__ == "__main__":
    sys.exit(main())
