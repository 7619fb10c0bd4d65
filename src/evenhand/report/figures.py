"""The learning curves of a study as a PNG, for places that take pictures and not pages."""

from __future__ import annotations

from pathlib import Path

from evenhand.errors import UserError
from evenhand.report.charts import names
from evenhand.study.protocol import Comparison
from evenhand.study.results import Results, gather

COLOURS = {"control": "#2f6db0", "treatment": "#c4560c"}


def curves_png(study: Path, path: Path, *, dpi: int = 160) -> None:
    """Draw one panel for each comparison and evaluation curve of a study folder.

    Lines as on the page: the mean over seeds, single seeds thin, the 95 % band. Needs the extra
    `report`. Raises UserError when the study has no curve yet or `path` cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    results = gather(study)
    panels = [
        (pair, entry.name, entry.label)
        for pair in results.protocol.comparisons
        for entry in results.protocol.evaluations
        if {pair.treatment, pair.control} <= set(results.curves.get(entry.name, {}))
    ]
    if not panels:
        raise UserError(f"{study}: no learning curve to draw yet; run the study further")
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    # No pyplot: it keeps global state, and may look for a screen.
    figure = Figure(figsize=(5.2 * columns, 3.3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for i, (pair, name, title) in enumerate(panels):
        many = len(results.protocol.comparisons) > 1
        heading = f"{pair.name}: {title}" if many else f"success on {title}"
        _panel(axes[i // columns][i % columns], results, pair, name, heading)
    for i in range(len(panels), rows * columns):
        axes[i // columns][i % columns].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another") from None


def _panel(axes: object, results: Results, pair: Comparison, name: str, heading: str) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import PercentFormatter

    assert isinstance(axes, Axes)
    treatment, control = names(pair)
    for arm, told, style in (
        (pair.control, control, "control"),
        (pair.treatment, treatment, "treatment"),
    ):
        curve = results.curves[name][arm]
        colour = COLOURS[style]
        steps = list(curve.steps_E)
        low, high = [p.low for p in curve.points_E], [p.high for p in curve.points_E]
        axes.fill_between(steps, low, high, color=colour, alpha=0.13, linewidth=0)
        for seed in sorted({seed for point in curve.points_E for seed in point.seeds}):
            known = [
                (s, p.seeds[seed])
                for s, p in zip(steps, curve.points_E, strict=True)
                if seed in p.seeds
            ]
            axes.plot(*zip(*known, strict=True), color=colour, linewidth=0.8, alpha=0.45)
        mean = [point.mean for point in curve.points_E]
        dash = "--" if style == "control" else "-"
        axes.plot(
            steps, mean, dash, color=colour, linewidth=2.2, marker="o", markersize=4, label=told
        )
    axes.set_title(heading, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("training step")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(axis="y", color="#e2dfd9", linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(frameon=False, loc="lower right", fontsize=9)
