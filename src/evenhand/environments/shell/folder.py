"""A work folder as a value: packed bytes that forks share and that are never unpacked here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from evenhand.environments.shell import jail
from evenhand.errors import EvenhandError


@dataclass(frozen=True)
class Entry:
    """A file, a folder or a link."""

    kind: str = "f"
    """f, d or l."""
    data: bytes = b""
    """A file's content, or a link's target."""
    mode: int = 0o644


def file(text: str, mode: int = 0o644) -> Entry:
    """A file of text."""
    return Entry("f", text.encode(), mode)


Tree = Mapping[bytes, Entry]


def packed(tree: Mapping[str, Entry]) -> bytes:
    """A folder from paths and entries; folders that are not named are made (0755)."""
    held = {path.encode(): entry for path, entry in tree.items()}
    for path in list(held):
        while (path := path.rpartition(b"/")[0]) and path not in held:
            held[path] = Entry("d", b"", 0o755)
    return b"".join(
        jail.entry(entry.kind.encode(), path, entry.mode, entry.data)
        for path, entry in sorted(held.items())
    )


def unpacked(folder: bytes) -> Tree:
    """Paths and entries of a packed folder.

    EvenhandError when a path is not below the folder, its parent is no folder, or the order is
    not the sorted one: no jail answers so.
    """
    tree: dict[bytes, Entry] = {}
    last = b""
    try:
        for kind, path, mode, data in jail.entries(folder):
            parts = path.split(b"/")
            parent = b"/".join(parts[:-1])
            if any(part in (b"", b".", b"..") or b"\0" in part for part in parts):
                raise ValueError(f"{path!r} is not below the folder")
            if kind not in (b"f", b"d", b"l") or path <= last:
                raise ValueError(f"{path!r} is out of order, or of no kind")
            if parent and tree.get(parent, Entry()).kind != "d":
                raise ValueError(f"{path!r} lies in no folder")
            tree[path] = Entry(kind.decode(), data, mode)
            last = path
    except ValueError as error:
        raise EvenhandError(f"work folder: {error}") from error
    return tree


def digest(folder: bytes) -> str:
    """Equal for equal folders, in every process."""
    return hashlib.blake2b(folder, digest_size=16).hexdigest()
