"""The page of an audit: one HTML file that needs no network, no server and no other file."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import evenhand
from evenhand.audit.finding import Finding
from evenhand.audit.gallery import Gallery
from evenhand.audit.pictures import Pictures, pictures
from evenhand.audit.read import read
from evenhand.audit.report import Report, audit_log
from evenhand.errors import UserError
from evenhand.report.rollouts import inline_json
from evenhand.report.svg import Series, line_chart
from evenhand.study.frozen import write_whole

WORDS = {
    "luck-share": "Luck share",
    "tool-luck": "Tool luck",
    "coupling": "Coupling",
    "reversal-risk": "Reversal risk",
    "cross-talk": "Cross-talk",
    "dead-groups": "Dead groups",
    "drift": "Drift",
}
NAMES = {
    "group_std": "group std (GRPO)",
    "centred": "centred",
    "batch_std": "batch std",
    "leave_one_out": "leave one out",
}


@dataclass(frozen=True)
class Lane:
    """A share with its interval, as places on a line from 0 to 1, in per cent."""

    finding: Finding
    low: float
    width: float
    at: float


def audit_page(path: Path, out: Path) -> Report:
    """Audit `path`, write its page whole, and return the report."""
    gallery = Gallery()
    log = read(path, gallery)
    report = audit_log(log, str(path))
    text = render(report, pictures(log), gallery)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, text)
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written ({error.strerror}); give --html another place"
        ) from None
    return report


def render(report: Report, drawn: Pictures, gallery: Gallery) -> str:
    """The page as text; every string of the log is escaped, or inlined as JSON and set as text."""
    environment = Environment(
        loader=PackageLoader("evenhand.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _text("viewer.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    groups = [_group(group) for group in gallery.groups()]
    worst = next(
        (v for v in ("critical", "warning") if any(f.verdict == v for f in report.findings)), "ok"
    )
    lanes = [
        _lane(f)
        for f in report.findings
        if f.kind in ("luck-share", "tool-luck") and np.isfinite(f.estimate)
    ]
    turn = next(f for f in report.findings if f.kind == "reversal-risk")
    # Where no direction is known there is none to show.
    known = turn.verdict != "not-identifiable"
    shown = (turn.evidence.get("of_the_commonest_task") or []) if known else []
    return environment.get_template("audit.html").render(
        report=report,
        worst=worst,
        words=WORDS,
        number=_number,
        lanes=lanes,
        luck=[f for f in report.findings if f.kind in ("luck-share", "tool-luck")],
        turn=turn,
        directions=_directions(shown),
        actions=_actions(shown),
        cosines=_cosines(turn.evidence.get("cosines") or {}) if known else [],
        names=NAMES,
        matrix=_matrix(drawn),
        drawn=drawn,
        steps=_steps(drawn),
        groups=groups,
        groups_json=inline_json(groups),
        style=Markup(_text("style.css") + _text("audit.css")),
        script=Markup(script),
        script_hash=digest,
        version=evenhand.__version__,
    )


def _lane(f: Finding) -> Lane:
    low, high, at = (100 * float(np.clip(v, 0, 1)) for v in (f.low, f.high, f.estimate))
    return Lane(f, low, high - low, at)


def _number(f: Finding) -> str:
    if not np.isfinite(f.estimate):
        return "–"
    return f"{f.estimate:.3g} [{f.low:.3g}, {f.high:.3g}]".replace("-", "−")


def _directions(rows: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """A chart a normalisation: a bar for the expected update of each action, by its letter."""
    charts = []
    for name in NAMES if rows else ():
        if name not in rows[0]:
            continue
        # Each normalisation has a unit of its own: only directions are compared.
        most = max(abs(float(r[name])) for r in rows) or 1.0
        left, wide, high = 24, 170, 24
        middle, height = left + wide / 2, 24 + high * len(rows)
        told = ", ".join(f"{_letter(i)} {float(r[name]):+.3g}" for i, r in enumerate(rows))
        parts = [
            f'<svg class="chart bars" viewBox="0 0 {left + wide} {height}" role="img"'
            f' aria-label="{escape(NAMES[name])}: {escape(told)}">'
            f'<text class="tick" x="{middle}" y="12" text-anchor="middle">{escape(NAMES[name])}'
            f'</text><line class="axis" x1="{middle}" x2="{middle}" y1="20" y2="{height - 2}"/>'
        ]
        for i, r in enumerate(rows):
            value = float(r[name])
            length = abs(value) / most * (wide / 2 - 4)
            start = middle if value >= 0 else middle - length
            kind = "up" if value >= 0 else "down"
            parts.append(
                f'<text class="tick" x="8" y="{31 + high * i}" dy="0.32em">{_letter(i)}</text>'
                f'<rect class="bar {kind}" x="{start:.1f}" y="{23 + high * i}"'
                f' width="{length:.1f}" height="16">'
                f"<title>{escape(_letter(i))}: {value:+.4g}</title></rect>"
            )
        charts.append(Markup("".join([*parts, "</svg>"])))
    return charts


def _letter(place: int) -> str:
    return chr(ord("A") + place)


def _actions(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(letter, what was done, share of the task's rollouts) of the actions in the charts."""
    return [
        (
            _letter(i),
            " ".join(_called(str(r["action"]))).strip() or "other actions",
            f"{100 * float(r['share']):.0f} %",
        )
        for i, r in enumerate(rows)
    ]


def _cosines(table: Mapping[str, Mapping[str, float]]) -> list[tuple[str, list[str]]]:
    order = [name for name in NAMES if name in table]
    if not any(np.isfinite(v) for row in table.values() for v in row.values()):
        return []
    return [
        (
            NAMES[one],
            [
                "–" if not np.isfinite(table[one][o]) else f"{table[one][o]:+.2f}".replace("-", "−")
                for o in order
            ],
        )
        for one in order
    ]


def _matrix(drawn: Pictures) -> Markup:
    """A heat map, sibling by sibling: how often two of them met the same."""
    shares = drawn.matrix_GG
    size = len(shares)
    if size < 2 or not np.isfinite(shares).any():
        return Markup("")
    cell, left = 30, 30
    width = left + cell * size
    told = f"{drawn.matrix_says}; mean over pairs {np.nanmean(shares):.2f}"
    parts = [
        f'<svg class="chart matrix" viewBox="0 0 {width} {width}" role="img"'
        f' aria-label="{escape(told)}">'
    ]
    for i in range(size):
        place = left + cell * (i + 0.5)
        parts.append(
            f'<text class="tick" x="{place}" y="20" text-anchor="middle">{i}</text>'
            f'<text class="tick" x="20" y="{place}" dy="0.32em" text-anchor="middle">{i}</text>'
        )
        for j in range(size):
            if i == j or not np.isfinite(shares[i, j]):
                continue
            value = float(shares[i, j])
            x, y = left + cell * j, left + cell * i
            shade = "light" if value > 0.55 else "dark"
            parts.append(
                f'<rect class="cell" x="{x}" y="{y}" width="{cell - 2}" height="{cell - 2}"'
                f' fill-opacity="{0.06 + 0.94 * value:.2f}"><title>rollouts {i} and {j}:'
                f" {value:.2f}</title></rect>"
                f'<text class="tick {shade}" x="{x + cell / 2 - 1}" y="{y + cell / 2 - 1}"'
                f' dy="0.35em" text-anchor="middle">{100 * value:.0f}</text>'
            )
    parts.append("</svg>")
    return Markup("".join(parts))


def _steps(drawn: Pictures) -> list[tuple[str, Markup]]:
    charts = []
    for title, points in drawn.series.items():
        if len(points) < 3:
            continue
        values = [y for _, y in points]
        told = f"{title}: from {100 * values[0]:.0f} to {100 * values[-1]:.0f} per cent"
        series = [Series("", "treatment", points, dots=len(points) < 40)]
        charts.append((title, line_chart(series, told, floor=0.0)))
    return charts


def _group(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    letters: dict[str, int] = {}
    for r in group:
        if r["schedule"]:
            letters.setdefault(r["schedule"], len(letters))
    step = group[0]["step"]
    task = group[0]["task"].replace("\n", " ")
    if not letters:
        shared = "the log names no schedules: who shared a draw is not known"
    elif len(letters) == 1:
        shared = "all share one draw"
    else:
        shared = f"{len(letters)} draws among {len(group)}"
    return {
        "name": f"step {step}: {task[:90]}",
        "prompt": group[0]["task"],
        "note": shared,
        "rollouts": [
            {
                "index": r["index"],
                "draw": letters.get(r["schedule"]),
                "true": r["true"],
                "observed": r["reward"],
                "flip": r["true"] is not None and r["true"] != r["reward"],
                "advantage": r["advantage"],
                "stop": "",
                "failure": "no reward" if r["lost"] else "",
                "turns": [_turn(t) for t in r["turns"]] or [{"text": r["text"]}],
            }
            for r in sorted(group, key=lambda r: int(r["index"]))
        ],
    }


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    tool, arguments = _called(turn["call"])
    return {
        "tool": tool,
        "arguments": arguments,
        "result": turn["result"],
        "fault": "met, not caused by the rollout" if turn["fault"] else None,
        "idle": False,
        "problem": "failed" if turn["failed"] and not turn["fault"] else None,
        "event": f"served by the cache: {turn['tier']}" if turn["tier"] else None,
    }


def _called(text: str) -> tuple[str, str]:
    """(tool, arguments) of a call as the readers write it; ("", all of it) of anything else."""
    try:
        match json.loads(text):
            case [str(tool), dict(arguments)]:
                return tool, json.dumps(arguments, ensure_ascii=False)
    except (ValueError, RecursionError):
        pass
    return "", text


def _text(name: str) -> str:
    folder = importlib.resources.files("evenhand.report") / "templates"
    return (folder / name).read_text(encoding="utf-8")
