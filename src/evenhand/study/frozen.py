"""Freezing: a study's protocol is fixed by hash before the first step, and edits leave a mark.

The study folder holds `protocol.yaml` (the text as registered) and `frozen.json`. An edited
protocol is refused; with a reason it is taken as an amendment, which the results then carry. Runs
whose recipe an amendment changes start again, and what they had is kept under `superseded/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import evenhand
from evenhand.errors import UserError
from evenhand.study.protocol import Protocol, fingerprint, parse
from evenhand.training.configs import read_yaml

VERSION = 1
PROTOCOL = "protocol.yaml"
FROZEN = "frozen.json"


@dataclass(frozen=True)
class Amendment:
    """One edit of a protocol after it was frozen."""

    time: str
    """UTC, ISO 8601."""
    reason: str
    sha256: str
    """Of the protocol after the edit."""
    changes: tuple[str, ...]
    """One line a changed key: `rules.0.minimum: 0.03 -> 0.02`."""


@dataclass(frozen=True)
class Frozen:
    """What `frozen.json` says."""

    sha256: str
    """Of the protocol as first registered."""
    time: str
    """UTC, ISO 8601."""
    evenhand: str
    """Version of the package that froze it."""
    policy: str
    """The starting policy, as the protocol names it."""
    policy_sha256: str
    """Over names and contents of every file of the policy folder."""
    amendments: tuple[Amendment, ...] = ()
    version: int = field(default=VERSION)

    @property
    def current(self) -> str:
        """The hash that the protocol must have now."""
        return self.amendments[-1].sha256 if self.amendments else self.sha256

    def write(self, study: Path) -> None:
        """Write `frozen.json` whole."""
        write_whole(study / FROZEN, json.dumps(asdict(self), indent=2) + "\n")


def read_frozen(study: Path) -> Frozen:
    """The freeze of a study folder; UserError when there is none or it is broken."""
    path = study / FROZEN
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("version") != VERSION:
            raise ValueError(f"version {data.get('version')!r} is not {VERSION}")
        edits = tuple(
            Amendment(**{**a, "changes": tuple(a["changes"])}) for a in data.pop("amendments")
        )
        return Frozen(**data, amendments=edits)
    except FileNotFoundError:
        raise UserError(
            f"{study}: not a study folder, it has no {FROZEN}; make one with `evenhand study run`"
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: broken ({error}); restore it from a copy") from None


def open_study(study: Path) -> tuple[Protocol, Frozen]:
    """The protocol and freeze of a study folder, checked against one another."""
    frozen = read_frozen(study)
    path = study / PROTOCOL
    data = read_yaml(path)
    if fingerprint(data) != frozen.current:
        raise UserError(
            f"{path}: does not have the hash that {FROZEN} recorded; restore it, or run the study"
            ' with the edited protocol and --amend "REASON"'
        )
    return parse(data, str(path)), frozen


def freeze(protocol: Path, study: Path, policy_sha256: str, amend: str | None = None) -> Frozen:
    """Freeze a protocol into a study folder, or check that it is the frozen one.

    `amend` is the reason for an edit; UserError when an edit has none, or a reason no edit.
    """
    data = read_yaml(protocol)
    policy = str(data.get("recipe", {}).get("policy", ""))
    if not (study / FROZEN).exists():
        if amend is not None:
            raise UserError(f"{study}: nothing is frozen here yet, so leave out --amend")
        text = protocol.read_text(encoding="utf-8")
        write_whole(study / PROTOCOL, text)
        frozen = Frozen(fingerprint(data), _now(), evenhand.__version__, policy, policy_sha256)
        frozen.write(study)
        return frozen
    frozen = read_frozen(study)
    edited = fingerprint(data) != frozen.current
    changed_policy = policy_sha256 != frozen.policy_sha256
    if not edited and not changed_policy:
        if amend is not None:
            raise UserError(f"{protocol}: is the frozen protocol unchanged, so leave out --amend")
        return frozen
    if amend is None:
        what = (
            f"{protocol}: differs from the protocol frozen"
            if edited
            else (f"{protocol}: the policy {policy!r} is not the one frozen")
        )
        raise UserError(
            f"{what} in {study} on {frozen.time}; undo that, choose another --out, or give"
            ' --amend "REASON", which marks the study as amended'
        )
    if not amend.strip():
        raise UserError("--amend needs a reason, in words")
    return _amended(frozen, study, protocol, data, policy, policy_sha256, amend.strip())


def _amended(
    frozen: Frozen,
    study: Path,
    protocol: Path,
    data: Mapping[str, Any],
    policy: str,
    policy_sha256: str,
    reason: str,
) -> Frozen:
    text = protocol.read_text(encoding="utf-8")
    old = study / PROTOCOL
    kept = study / "superseded" / f"protocol-{len(frozen.amendments)}.yaml"
    kept.parent.mkdir(exist_ok=True)
    # Absent, or not yet replaced: a run killed in the middle of this comes here again.
    if not kept.exists():
        shutil.copyfile(old, kept)
    changes = list(differences(read_yaml(kept), data))
    if policy_sha256 != frozen.policy_sha256:
        changes.append(f"policy files: {frozen.policy_sha256[:12]} -> {policy_sha256[:12]}")
    edit = Amendment(_now(), reason, fingerprint(data), tuple(changes))
    write_whole(old, text)
    after = Frozen(
        frozen.sha256,
        frozen.time,
        frozen.evenhand,
        policy,
        policy_sha256,
        (*frozen.amendments, edit),
    )
    after.write(study)
    return after


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """One line for each place in which two YAML values differ, `workers` left out."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if place or key != "workers":
                inner = f"{place}.{key}" if place else str(key)
                yield from differences(before.get(key), after.get(key), inner)
    elif (
        isinstance(before, list)
        and isinstance(after, list)
        and len(before) == len(after)
        and any(isinstance(v, dict) for v in before)
    ):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{place}.{i}")
    elif before != after:
        yield f"{place}: {_shown(before)} -> {_shown(after)}"


def policy_fingerprint(folder: Path) -> str:
    """SHA-256 over the names and contents of a folder's files; UserError when it has none."""
    files = sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []
    if not files:
        raise UserError(
            f"{folder}: no policy folder there; give the folder of a Hugging Face model"
        )
    whole = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return whole.hexdigest()


def joint_fingerprint(policies: Iterable[str]) -> str:
    """One hash for the policies of all arms: that of the only one, where there is one."""
    distinct = list(dict.fromkeys(policies))
    if len(distinct) == 1:
        return distinct[0]
    return hashlib.sha256("\n".join(distinct).encode()).hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it is either the old one or the new one, never torn."""
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
