"""`evenhand study keep`: what of a finished study is small enough to commit.

Kept are the protocol as frozen, its hash, the times it took, the results, the page, the curves, and
the raw records: every training step's line and every evaluation rollout's line of every run, as two
Parquet files with the arm and the seed beside them. Checkpoints and token-level rollouts are not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evenhand.errors import UserError
from evenhand.records import json_lines
from evenhand.report.figures import curves_png
from evenhand.report.page import write_page
from evenhand.study.command import write_results
from evenhand.study.frozen import FROZEN, PROTOCOL
from evenhand.study.layout import study_runs

JOURNALS = ("metrics", "evaluations")


def keep(study: Path, out: Path) -> None:
    """Copy the small form of `study` into the folder `out`, which is replaced whole.

    Raises UserError when the folder is not a study's, or when `out` holds something else.
    """
    results = write_results(study)
    if out.exists() and any(out.iterdir()) and not (out / FROZEN).exists():
        raise UserError(f"{out}: holds something else than a kept study; choose another folder")
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name in (PROTOCOL, FROZEN, "sessions.json", "results.json", "results.md"):
        if (study / name).exists():  # a study that never ran has no sessions
            shutil.copyfile(study / name, part / name)
    write_page(results, part / "report.html")
    if results.curves:
        curves_png(study, part / "curves.png")
    for name in JOURNALS:
        _write(part / f"{name}.parquet", list(_lines(study, results.protocol, name)))
    if out.exists():
        shutil.rmtree(out)
    os.replace(part, out)


def _lines(study: Path, protocol: Any, journal: str) -> Iterator[dict[str, Any]]:
    for run in study_runs(study, protocol):
        for _, line in json_lines(run.folder / f"{journal}.jsonl", drop_torn=True):
            flat = {key: value for key, value in line.items() if not isinstance(value, dict)}
            yield {"arm": run.arm, "seed": run.seed, **flat}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Arrow takes its columns from the first row alone; other arms may tell other things.
    columns = list(dict.fromkeys(key for row in rows for key in row))
    whole = [{key: row.get(key) for key in columns} for row in rows]
    pq.write_table(pa.Table.from_pylist(whole), path, compression="zstd")
