"""The page of a study: one HTML file that needs no network, no server and no other file."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import evenhand
from evenhand.errors import UserError
from evenhand.report import charts, tables
from evenhand.report.rollouts import inline_json, viewer_groups
from evenhand.study.frozen import write_whole
from evenhand.study.metrics import label
from evenhand.study.protocol import Comparison
from evenhand.study.ranking import rankings
from evenhand.study.results import Results
from evenhand.study.summary import signed


@dataclass(frozen=True)
class Section:
    """What the page says of one comparison."""

    pair: Comparison
    treatment: str
    control: str
    curves: list[charts.Figure]
    differences: tables.Plot | None
    groups: list[charts.Figure]
    metrics: list[tables.MetricRow]


def write_page(results: Results, path: Path) -> None:
    """Write the page whole; UserError when the place cannot be written."""
    text = render(results)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); give --output another place"
        ) from None


def render(results: Results) -> str:
    """The page as text.

    Every string of the study, its tools' texts included, is escaped by the template or, for the
    viewer, inlined as JSON and set as text by the script; a content policy allows that one script
    by its hash and nothing from elsewhere.
    """
    environment = Environment(
        loader=PackageLoader("evenhand.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["points"] = signed
    script = _text("viewer.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    groups = viewer_groups(results)
    sections = [_section(results, pair) for pair in results.protocol.comparisons]
    return environment.get_template("study.html").render(
        results=results,
        label=label,
        protocol=results.protocol,
        frozen=results.frozen,
        verdict=results.verdict,
        scale=_scale(results),
        sections=sections,
        rankings=rankings(results),
        dead=[figure for section in sections for figure in section.groups],
        flips=any(len(section.groups) > 1 for section in sections),
        rises=tables.rise_plots(results),
        luck=tables.luck_plot(results),
        table=results.protocol.luck_table,
        protocol_text=yaml.safe_dump(
            results.protocol.model_dump(exclude_defaults=True), sort_keys=False, allow_unicode=True
        ),
        groups=groups,
        groups_json=inline_json(groups),
        style=Markup(_text("style.css")),
        script=Markup(script),
        script_hash=digest,
        version=evenhand.__version__,
    )


def _section(results: Results, pair: Comparison) -> Section:
    treatment, control = tables.headings(pair)
    found = [charts.dead_groups(results, pair), charts.spurious_groups(results, pair)]
    return Section(
        pair,
        treatment,
        control,
        charts.learning_curves(results, pair),
        tables.difference_plot(results, pair),
        [figure for figure in found if figure is not None],
        tables.metric_rows(results, pair),
    )


def _scale(results: Results) -> list[str]:
    """The size of the study in a few words each."""
    protocol = results.protocol
    recipe: dict[str, Any] = protocol.recipe
    groups, size = int(recipe.get("groups", 8)), int(recipe.get("group_size", 8))
    rollouts = sum(len(data.training) for data in results.runs) * groups * size
    parts = [
        f"{len(protocol.arms)} arms × {len(protocol.seeds)} seeds",
        f"{protocol.steps} steps of {groups} groups of {size}",
        f"{rollouts:,} training rollouts".replace(",", " "),
    ]
    if results.hours >= 0.05:
        parts.append(f"{results.hours:.1f} hours")
    elif results.hours > 0:
        parts.append(f"{60 * results.hours:.0f} minutes")
    return parts


def _text(name: str) -> str:
    folder = importlib.resources.files("evenhand.report") / "templates"
    return (folder / name).read_text(encoding="utf-8")
