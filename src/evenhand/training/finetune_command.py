"""`evenhand sft RECIPE.yaml`, as a plain function, and the page that a run leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenhand.statistics import wilson
from evenhand.training.finetune_recipe import load_sft_recipe
from evenhand.training.folder import replace_file


def sft_command(
    recipe: Path, out: Path, overrides: Sequence[str] = (), *, quiet: bool = False
) -> None:
    """Fine-tune a policy into a folder, or go on there; print and write its report.

    Raises UserError for bad input, in one sentence that names file and field and the mend.
    """
    loaded = load_sft_recipe(recipe, overrides)
    # Torch only once the recipe is known to be good.
    from transformers.utils import logging

    from evenhand.training.finetune import finetune

    def note(text: str) -> None:
        if not quiet:
            print(text, flush=True)

    logging.disable_progress_bar()
    finetune(loaded, out, note=note)
    text = report(out)
    replace_file(out / "report.md", text)
    note(text)


def report(out: Path) -> str:
    """Losses by tool and by turn, and success, before and after: Markdown from a run's journals."""
    metrics = _lines(out / "metrics.jsonl")
    told = [(m["step"], m["validation"]) for m in metrics if "validation" in m]
    lines = [f"# {out.name}", ""]
    if told:
        (first, before), (last, after) = told[0], told[-1]
        lines += [
            f"Loss of held-out trajectories, in nats a learned token, step {first} and {last}.",
            "",
            "| | before | after | tokens |",
            "| --- | --- | --- | --- |",
            f"| all | {before['loss']:.4f} | {after['loss']:.4f} | |",
        ]
        for kind in ("tool", "turn"):
            for name, found in after[f"by_{kind}"].items():
                old = before[f"by_{kind}"][name]["loss"]
                cell = str(name).replace("|", "\\|")
                lines.append(
                    f"| {kind} {cell} | {old:.4f} | {found['loss']:.4f} | {found['tokens']} |"
                )
        lines.append("")
    rows = _success(_lines(out / "evaluations.jsonl"))
    if rows:
        lines += ["| success | step | share | 95 % | rollouts |", "| --- | --- | --- | --- | --- |"]
        lines += rows
        lines.append("")
    return "\n".join(lines)


def _success(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    cells: dict[tuple[str, int], list[float]] = {}
    for line in lines:
        if line["success"] is not None:
            cells.setdefault((line["set"], line["step"]), []).append(line["success"])
    rows = []
    for (name, step), found in sorted(cells.items()):
        share = wilson(sum(found), len(found))
        rows.append(
            f"| {name} | {step} | {share.estimate:.3f} | {share.low:.3f} to {share.high:.3f}"
            f" | {len(found)} |"
        )
    return rows


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
