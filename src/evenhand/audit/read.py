"""Which log is this? Recognise a file or folder and read it; nothing has to be declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evenhand.audit import engines, own, plain
from evenhand.audit.builder import MOST, Builder
from evenhand.audit.gallery import Gallery
from evenhand.audit.log import Log
from evenhand.errors import UserError
from evenhand.records import json_lines


def read(path: Path, gallery: Gallery | None = None, *, most: int = MOST) -> Log:
    """The rollouts under `path`, of which at most `most` are kept; UserError says what was looked
    for when there are none. `gallery` is shown them all."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")

    def new(source: str) -> Builder:
        return Builder(source, most, gallery)

    rows = _folder(path, new) if path.is_dir() else _file(path, new)
    if not rows.seen:
        raise UserError(f"{path}: holds no rollouts; {_WANTED}")
    return rows.log()


New = Callable[[str], Builder]

_WANTED = (
    "give an evenhand run, TRL completions parquet, verl rollout JSONL, verifiers traces.jsonl, or"
    " JSONL or CSV with prompt_id and rewards, or reward and group_id a row"
)


def _folder(path: Path, new: New) -> Builder:
    runs = own.runs(path)
    if runs:
        rows = new("evenhand")
        for run in runs:
            own.run(rows, run, path)
        return rows
    found = sorted(path.rglob("completions_*.parquet"))
    if found:
        rows = new("trl")
        for file in found:
            engines.trl(rows, file)
        return rows
    found = sorted(path.rglob("traces.jsonl"))
    if not found:
        found = sorted(path.glob("*.jsonl"), key=lambda f: (not f.stem.isdigit(), f.stem.zfill(12)))
    if not found:
        found = sorted([*path.glob("*.csv"), *path.glob("*.parquet")])
    if not found:
        raise UserError(f"{path}: holds no log that is known here; {_WANTED}")
    whole: Builder | None = None
    for file in found:
        whole = _file(file, new, whole)
    assert whole is not None
    return whole


def _file(path: Path, new: New, rows: Builder | None = None) -> Builder:
    match path.suffix:
        case ".parquet":
            return _parquet(path, new, rows)
        case ".csv":
            rows = rows or new("plain")
            plain.csv_file(rows, path)
            return rows
        case ".jsonl" | ".json" | ".ndjson":
            return _jsonl(path, new, rows)
        case _:
            raise UserError(f"{path}: is of no kind known here; {_WANTED}")


def _parquet(path: Path, new: New, rows: Builder | None) -> Builder:
    names = engines.columns(path)
    if {"task_id", "group_id", "turns", "version"} <= names:
        rows = rows or new("evenhand")
        own.parquet(rows, path, path.parent.name)
        return rows
    if {"prompt", "completion", "advantage"} <= names:
        rows = rows or new("trl")
        engines.trl(rows, path)
        return rows
    rows = rows or new("plain")
    plain.parquet(rows, path)
    return rows


def _jsonl(path: Path, new: New, rows: Builder | None) -> Builder:
    first = next((data for _, data in json_lines(path, drop_torn=True)), None)
    if first is None:
        rows = rows or new("plain")
        rows.note(f"{path.name}: holds no whole line")
        return rows
    kind, reader = _reader(first, path)
    rows = rows or new(kind)
    if rows.source != kind:
        rows.note(f"{path.name}: is of kind {kind}, beside {rows.source} files")
    _tail(rows, path)
    reader(rows, path)
    return rows


def _reader(first: Mapping[str, Any], path: Path) -> tuple[str, Any]:
    if {"task_id", "group_id", "turns", "version"} <= first.keys():
        return "evenhand", own.jsonl
    if "traces" in first and "task" in first:
        return "verifiers", engines.verifiers
    if {"input", "output", "score"} <= first.keys():
        return "verl", engines.verl
    if {"step", "data"} <= first.keys() and isinstance(first["data"], Mapping):
        raise UserError(
            f"{path}: holds scalars a step and no rollouts; set trainer.rollout_data_dir and give"
            " that folder"
        )
    if "rewards" in first or "reward" in first or "score" in first:
        return "plain", plain.jsonl
    raise UserError(f"{path}: has the keys {', '.join(list(first)[:8])}; {_WANTED}")


def _tail(rows: Builder, path: Path) -> None:
    with open(path, "rb") as file:
        file.seek(0, 2)
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                rows.note(f"{path.name}: the last line has no end; it is left out if it is torn")
