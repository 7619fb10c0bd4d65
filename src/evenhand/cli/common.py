"""What the command's files share: how a group of commands is made, and options that recur."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def group(text: str) -> typer.Typer:
    """A group of commands whose help is plain text."""
    return typer.Typer(
        help=text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


Out = Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
