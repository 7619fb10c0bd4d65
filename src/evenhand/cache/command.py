"""What `evenhand cache` does; each function returns the text to print."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from evenhand.cache.database import APPLICATION_ID
from evenhand.cache.frames import ORIGINS
from evenhand.cache.recorded import Imported, export_lines, import_file, tools_from_config
from evenhand.cache.similar import content, entities
from evenhand.cache.sqlite import rebuild_file
from evenhand.cache.stats import stats
from evenhand.cache.store import open_store
from evenhand.cache.thresholds import measure
from evenhand.errors import UserError
from evenhand.tools import Effect


def stats_command(place: str) -> str:
    """Counts of a store."""
    store = open_store(place, create=False)
    try:
        return "\n".join(stats(store).lines())
    finally:
        store.close()


def check_command(place: str, *, fix: bool = False) -> tuple[str, bool]:
    """(text, whether all is sound now)."""
    try:
        store = open_store(place, create=False)
    except UserError:
        path = Path(place)
        if not fix or "://" in place or not path.is_file() or not _ours(path):
            raise
        saved = rebuild_file(path)
        return f"rebuilt from {saved} whole entries; the damaged file is {path}.damaged", True
    try:
        found = store.check(fix=fix)
    finally:
        store.close()
    lines = [f"{found.entries} whole entries, {found.corrupt} corrupt", *found.problems]
    if found.saved is not None:
        lines.append(f"rebuilt from {found.saved} whole entries; the old file is {place}.damaged")
    elif fix and found.corrupt:
        lines.append("the corrupt entries were removed")
    elif not found.sound:
        lines.append("--fix removes what is broken and keeps all that is whole")
    return "\n".join(lines), fix or found.sound


def _ours(path: Path) -> bool:
    """A damaged file is rebuilt only if it was a cache: by its id, or a frame in it."""
    with path.open("rb") as file:
        head = file.read(100)
        return head[68:72] == APPLICATION_ID.to_bytes(4, "big") or b"EHC1" in head + file.read()


def import_command(
    place: str,
    files: Sequence[Path],
    *,
    effects: Path | None = None,
    assume: str | None = None,
    origin: str = "recorded",
    version: str = "1",
) -> str:
    """Read recorded trajectories or exported entries into a store."""
    if origin not in ORIGINS:
        raise UserError(f"origin {origin!r}: use {', '.join(ORIGINS)}")
    try:
        assumed = Effect(assume) if assume else None
    except ValueError:
        raise UserError(f"effect {assume!r}: use {', '.join(Effect)}") from None
    tools = tools_from_config(_yaml(effects), str(effects)) if effects else {}
    store = open_store(place)
    lines = []
    try:
        for file in files:
            found = import_file(
                store,
                file,
                tools,
                assume=assumed,
                origin=origin,
                version=version,
                now=time.time(),
            )
            lines.append(f"{file}: {_said(found)}")
            if found.undeclared:
                names = ", ".join(f"{name} ({n})" for name, n in sorted(found.undeclared.items()))
                lines.append(f"  undeclared, not kept: {names}; name their effects with --effects")
    finally:
        store.close()
    return "\n".join(lines)


def export_command(place: str, out: Path) -> str:
    """Write every whole entry, a line each."""
    store = open_store(place, create=False)
    count = 0
    part = out.with_name(out.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for line in export_lines(store):
                file.write(line + "\n")
                count += 1
        os.replace(part, out)
    finally:
        store.close()
    corrupt = store.counters.corrupt + store.counters.errors
    return f"{count} entries" + (f"; {corrupt} could not be read" if corrupt else "")


def thresholds_command(place: str, *, strict: bool = False, pairs: int = 100_000) -> str:
    """A table of false hits, and the threshold that it argues for."""
    store = open_store(place, create=False)
    try:
        measured = measure(store, gate=content if strict else entities, pairs=pairs)
    finally:
        store.close()
    lines = [
        f"{measured.different} known-different pairs, {measured.same} pairs with equal values",
        "threshold  false, similarity alone  false, past the gate  wanted, past the gate",
    ]
    lines += [
        f"{t:9.2f}  {alone:23}  {gated:20}  {hit:21}" for t, alone, gated, hit in measured.rows
    ]
    if measured.proposed is None:
        lines.append("no threshold is safe with this gate; try --strict")
    else:
        lines.append(f"proposed: {measured.proposed:.2f}")
    return "\n".join(lines)


def _said(found: Imported) -> str:
    return (
        f"{found.lines} lines, {found.calls} calls: {found.stored} stored,"
        f" {found.duplicates} known, {found.conflicts} in conflict, {found.unusable} unusable"
    )


def _yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: must map tool names to effects")
    return data
