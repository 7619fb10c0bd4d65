"""What is whole in a damaged SQLite file: every entry whose own pages survive.

The pages are read without SQLite, which gives up a whole tree for one broken node. A leaf page of a
table lists its cells; a long cell goes on in a chain of overflow pages. Where a leaf's own list is
broken, its frames are found by their first bytes. Whatever is found must pass the frame's checksum,
so nothing wrong can be taken for a value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from evenhand.cache.frames import HEAD_BYTES, MAGIC, Entry, frame_length, read

_LEAF = 0x0D


def rebuild(path: Path) -> Iterator[Entry]:
    """Whole entries of a cache file and its WAL, the newest of each key only."""
    newest: dict[bytes, Entry] = {}
    pages, usable = _pages(path)
    for number, page in pages.items():
        for frame in _frames(number, page, pages, usable):
            entry = read(frame)
            if entry is not None:
                old = newest.get(entry.key)
                if old is None or entry.stored > old.stored:
                    newest[entry.key] = entry
    yield from newest.values()


def _pages(path: Path) -> tuple[Mapping[int, bytes], int]:
    """Pages by number, those of the WAL's last commit over those of the file."""
    data = path.read_bytes() if path.exists() else b""
    wal_path = Path(f"{path}-wal")
    wal = wal_path.read_bytes() if wal_path.exists() else b""
    size = _page_size(data, wal)
    pages = {n + 1: data[n * size : (n + 1) * size] for n in range(-(-len(data) // size))}
    # A frame of the WAL: page number, size of the file after a commit (else 0), two salts, sums.
    salts = wal[16:24]
    pending: dict[int, bytes] = {}
    for at in range(32, len(wal) - 24 - size + 1, 24 + size):
        number, commit = struct.unpack_from(">II", wal, at)
        if wal[at + 8 : at + 16] != salts:
            break  # left over from before the last checkpoint
        pending[number] = wal[at + 24 : at + 24 + size]
        if commit:
            pages.update(pending)
            pending = {}
    return pages, size


def _page_size(data: bytes, wal: bytes) -> int:
    claims = []
    if len(data) >= 18:
        (claim,) = struct.unpack_from(">H", data, 16)
        claims.append(65536 if claim == 1 else claim)
    if len(wal) >= 12:
        claims.append(struct.unpack_from(">I", wal, 8)[0])
    for claim in claims:
        if 512 <= claim <= 65536 and claim & (claim - 1) == 0:
            return int(claim)
    return 8192


def _frames(number: int, page: bytes, pages: Mapping[int, bytes], usable: int) -> Iterator[bytes]:
    at = 100 if number == 1 else 0
    if len(page) >= at + 8 and page[at] == _LEAF:
        (cells,) = struct.unpack_from(">H", page, at + 3)
        for i in range(min(cells, (len(page) - at - 8) // 2)):
            (place,) = struct.unpack_from(">H", page, at + 8 + 2 * i)
            frame = _cell(page, place, pages, usable)
            if frame is not None:
                yield frame
    # Also by first bytes: finds what a broken list of cells no longer names.
    found = page.find(MAGIC)
    while found >= 0:
        length = frame_length(page[found : found + HEAD_BYTES])
        if length is not None and found + length <= len(page):
            yield page[found : found + length]
        found = page.find(MAGIC, found + 1)


def _cell(page: bytes, place: int, pages: Mapping[int, bytes], usable: int) -> bytes | None:
    """The last column of a table cell: the frame."""
    length, at = _varint(page, place)
    _, at = _varint(page, at)  # rowid
    if length <= 0:
        return None
    most, least = usable - 35, (usable - 12) * 32 // 255 - 23
    local = length
    if length > most:
        local = least + (length - least) % (usable - 4)
        local = local if local <= most else least
    parts = [page[at : at + local]]
    left = length - len(parts[0])
    follow = int.from_bytes(page[at + local : at + local + 4], "big") if length > most else 0
    seen: set[int] = set()
    while left > 0 and follow and follow not in seen:
        seen.add(follow)
        overflow = pages.get(follow, b"")
        take = overflow[4 : 4 + min(left, usable - 4)]
        if not take:
            return None
        parts.append(take)
        left -= len(take)
        follow = int.from_bytes(overflow[:4], "big")
    if left > 0:
        return None
    record = b"".join(parts)
    head, _ = _varint(record, 0)
    # The frame is the last column, so it ends the record; find where it begins by its magic.
    begin = record.find(MAGIC, max(head, 0))
    return record[begin:] if begin >= 0 else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(9):
        if at + i >= len(data):
            return -1, at + i
        byte = data[at + i]
        if i == 8:
            return (value << 8) | byte, at + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at + i + 1
    return value, at + 9
