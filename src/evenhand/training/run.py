"""`evenhand train RECIPE.yaml`, as a plain function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenhand.training.progress import Quiet, View, make_view
from evenhand.training.recipe import load_recipe


def train_command(
    recipe: Path, out: Path, overrides: Sequence[str] = (), *, quiet: bool = False
) -> None:
    """Train the policy of a recipe into a folder, or resume it there.

    Args:
        recipe: a YAML file.
        out: the run's folder.
        overrides: such as "steps=5" or "optimiser.learning_rate=1e-3".
        quiet: print nothing.

    Raises:
        UserError: bad input, in one sentence that names file and field and the mend.
    """
    loaded = load_recipe(recipe, overrides)
    # Torch only once the recipe is known to be good.
    from transformers.utils import logging

    from evenhand.training.loop import train

    logging.disable_progress_bar()  # one for every checkpoint would tear the view apart
    view: View = Quiet() if quiet else make_view()
    train(loaded, out, view=view)
