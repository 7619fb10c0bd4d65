"""The `evenhand` command. Rooms are imported inside the commands, so that help is instant.

Bad input ends in one sentence on stderr and exit code 2; so does a missing extra, which is named.
`EVENHAND_TRACEBACK=1` shows the whole traceback instead.
"""

from __future__ import annotations

import os
import sys

import typer

from evenhand import __version__
from evenhand.cli.audit import audit
from evenhand.cli.cache import cache
from evenhand.cli.check import check_environment
from evenhand.cli.common import group
from evenhand.cli.environments import environments
from evenhand.cli.exact import exact
from evenhand.cli.policy import policy
from evenhand.cli.probe import probe
from evenhand.cli.recipe import recipe
from evenhand.cli.study import study
from evenhand.cli.training import sft, train, warmstart
from evenhand.cli.trajectories import trajectories
from evenhand.errors import UserError

# Which extra brings a module that a base install lacks.
EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "peft": "train",
    "accelerate": "train",
    "bokeh_sampledata": "environments",
    "pandas": "environments",
    "bm25s": "shop",
    "matplotlib": "report",
    "gguf": "smollm2",
    "trackio": "tracking",
    "tensorboard": "tracking",
    "rapidfuzz": "cache",
    "rfc8785": "cache",
    "valkey": "cache",
    "xxhash": "cache",
}


app = group("Group-relative reinforcement learning of tool-using agents: better, not luckier.")
for command in (train, sft, warmstart, probe):
    app.command()(command)
app.command("check-environment")(check_environment)
for name, commands in (
    ("audit", audit),
    ("study", study),
    ("policy", policy),
    ("environments", environments),
    ("exact", exact),
    ("cache", cache),
    ("trajectories", trajectories),
    ("recipe", recipe),
):
    app.add_typer(commands, name=name)


@app.command()
def version() -> None:
    """The version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point: runs the command; exit code 2 and one sentence on bad input."""
    # Transformers' advice to developers would stand before our one sentence.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        app()
    except UserError as error:
        _stop(str(error), error)
    except ImportError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _stop(f"this needs {error.name}: pip install 'evenhand[{extra}]'", error)
    except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        _stop(f"{error.filename}: {error.strerror}", error)
    except PermissionError as error:
        _stop(f"{error.filename}: {error.strerror}; choose another folder", error)


def _stop(sentence: str, error: Exception) -> None:
    if os.environ.get("EVENHAND_TRACEBACK"):
        raise error
    print("evenhand:", " ".join(sentence.split()), file=sys.stderr)
    sys.exit(2)
