"""Runs a command in a jail process of its own (`jail`), or says that this machine has no jail."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from evenhand.environments.shell import jail
from evenhand.environments.shell.filter import program
from evenhand.environments.shell.folder import unpacked
from evenhand.errors import InfrastructureError, UserError

REFUSAL = (
    "environment shell needs Linux 5.12 or newer on x86-64 or arm64 with bash, and user namespaces"
    " that this user may make ({}): allow them (kernel.unprivileged_userns_clone,"
    " kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces, or the container's"
    " seccomp profile), or use another machine; commands are never run without a jail"
)


@dataclass(frozen=True)
class Limits:
    """What one command may use."""

    seconds: float = 5.0
    memory: int = 512 << 20
    """Bytes of address space a process, and of resident memory of all together."""
    folder: int = 16 << 20
    """Bytes of the work folder, and again of /tmp."""
    file: int = 8 << 20
    output: int = 1 << 20
    """Bytes of output; beyond, the command is killed."""
    processes: int = 48
    opened: int = 256
    files: int = 4096


@dataclass(frozen=True)
class Ran:
    """What came of a command."""

    cut: str
    """The limit that ended it, one of `jail.CUTS`; "" when it ended by itself."""
    code: int
    output: bytes
    """Standard output and error, as they came."""
    folder: bytes
    """As the command left it; as it was, where it may not write or a limit ended it."""


LIMITS = Limits()
_idle: list[subprocess.Popen[bytes]] = []
"""Jailers that wait for a request; as many as there were commands at one moment."""
os.register_at_fork(after_in_child=_idle.clear)  # their pipes belong to the parent


def run(
    command: str,
    folder: bytes,
    *,
    home: str = "/work",
    start: str | None = None,
    writes: bool = True,
    limits: Limits = LIMITS,
) -> Ran:
    """Run `command` by bash with `folder` at `home`, starting in `start` (by default `home`).

    ValueError when the command holds a NUL; InfrastructureError when there is no answer.
    """
    text = command.encode(errors="replace")
    if b"\0" in text:
        raise ValueError("a command cannot hold a NUL")
    parts = (text, home.encode(), (start or home).encode(), program(os.uname().machine), folder)
    head = jail.REQUEST.pack(
        limits.seconds,
        limits.memory,
        limits.folder,
        limits.file,
        limits.output,
        limits.processes,
        limits.opened,
        limits.files,
        writes,
        *map(len, parts),
    )
    said = _answer(head + b"".join(parts))
    cut, code, size, left_size = jail.ANSWER.unpack_from(said)
    output = said[jail.ANSWER.size :][:size]
    left = said[jail.ANSWER.size + size :][:left_size]
    if not writes or cut:
        left = folder
    elif left != folder:
        unpacked(left)  # an answer that no jail gives is refused here
    return Ran(jail.CUTS[cut], code, output, left)


def _answer(request: bytes) -> bytes:
    try:
        jailer = _idle.pop()
    except IndexError:
        jailer = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(jail.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,  # an interrupt at the terminal is not the jailer's
        )
    assert jailer.stdin is not None and jailer.stdout is not None
    try:
        jailer.stdin.write(request)
        jailer.stdin.flush()
        head = jailer.stdout.read(jail.REPLY.size)
        if len(head) < jail.REPLY.size:
            raise InfrastructureError("the jail gave no answer: its process is gone")
        code, size = jail.REPLY.unpack(head)
        said = jailer.stdout.read(size)
    except BaseException as error:
        jailer.kill()
        jailer.wait()
        for pipe in (jailer.stdin, jailer.stdout):
            with contextlib.suppress(OSError):  # the rest of a request that nobody will read
                pipe.close()
        if isinstance(error, OSError):
            raise InfrastructureError(f"the jail gave no answer: {error}") from error
        raise
    _idle.append(jailer)
    if code != 0 or len(said) < jail.ANSWER.size:
        raise InfrastructureError(
            f"the jail gave no answer: {said.decode(errors='replace') or f'exit code {code}'}"
        )
    return said


@functools.cache
def unavailable() -> str | None:
    """Why there is no jail on this machine, in a sentence; None when there is one."""
    try:
        done = run("echo $$", b"")
    except (InfrastructureError, OSError, KeyError) as error:
        return REFUSAL.format(error)
    return None if done.output == b"2\n" else REFUSAL.format(f"a trial said {done.output!r}")


def need() -> None:
    """UserError when there is no jail on this machine."""
    if (why := unavailable()) is not None:
        raise UserError(why)
