"""Commands, each in a jail of its own: run as `python -I -S jail.py`, standard library only.

Starting Python costs more than a jail, so one process waits for requests and forks for each. A
request is three processes. The outer one gives up root and makes the namespaces. The keeper is
process 1 of the new ones: it builds a root of read-only system folders, unpacks the work folder,
watches the limits, and packs the folder again when no other process is left. The command itself
has no capability, no way to any, and a system-call filter. Request and answer are bytes (`REQUEST`,
`ANSWER`, then what their lengths say); the folder is records of `ENTRY`, so nothing of it is ever
unpacked outside the jail.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import stat
import struct
import time
from collections.abc import Iterator

REQUEST = struct.Struct("<dQQQQIII?IIIIQ")
"""Seconds; bytes of memory, folder, file, output; processes, open files, files; may it write; then
lengths of the command, the folder's path, the starting path, the system-call filter, the folder."""
ANSWER = struct.Struct("<BiQQ")
"""Which limit cut it (index into `CUTS`), exit code, lengths of output and folder."""
REPLY = struct.Struct("<iQ")
"""Exit code of the outer process (not 0: what follows is why), and the length of what follows."""
ENTRY = struct.Struct("<cHIQ")
"""f, d or l; mode; lengths of the path and of the data. Sorted by path."""
CUTS = ("", "TIMEOUT", "OUTPUT_LIMIT", "MEMORY_LIMIT", "FOLDER_LIMIT")
CLOCK = 1_704_067_200
"""The time of change of every file when a command starts: 2024-01-01."""
SURROUNDINGS = {"PATH": "/usr/bin:/bin", "USER": "agent", "LANG": "C.UTF-8", "TZ": "UTC"}
"""Environment variables of a command, with HOME."""
USER = 1000
NOBODY = 65534
HIDDEN = ("/usr/local", "/usr/src", "/usr/lib/python3/dist-packages", "/usr/share/doc")
"""Where this package, and the answers, might be installed."""
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LIBC = ctypes.CDLL(None, use_errno=True)
SPACES = 0x10000000 | 0x20000 | 0x20000000 | 0x40000000 | 0x8000000 | 0x4000000 | 0x2000000
"""New user, mount, pid, network, ipc, uts and cgroup namespaces."""


def entries(folder: bytes) -> Iterator[tuple[bytes, bytes, int, bytes]]:
    """(kind, path, mode, data) of each record of a packed folder; ValueError when it is none."""
    at = 0
    while at < len(folder):
        if at + ENTRY.size > len(folder):
            raise ValueError("a packed folder ends inside a record")
        kind, mode, path_size, size = ENTRY.unpack_from(folder, at)
        at += ENTRY.size
        end = at + path_size + size
        if end > len(folder):
            raise ValueError("a packed folder ends inside a record")
        yield kind, folder[at : at + path_size], mode, folder[at + path_size : end]
        at = end


def entry(kind: bytes, path: bytes, mode: int, data: bytes) -> bytes:
    """One record."""
    return ENTRY.pack(kind, mode, len(path), len(data)) + path + data


# -- building ----------------------------------------------------------------------------------


def _check(code: int, doing: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = [None if each is None else each.encode() for each in (source, target, kind)]
    code = _LIBC.mount(*words, ctypes.c_ulong(flags), data.encode() or None)
    _check(code, f"mount {target}")


def _attributes(path: str, put: int, clear: int, deep: bool) -> None:
    """mount_setattr, which alone can make a whole tree of mounts read-only."""
    wanted = struct.pack("<QQQQ", put, clear, 0, 0)
    flags = 0x8000 if deep else 0
    _check(_LIBC.syscall(442, -100, path.encode(), flags, wanted, len(wanted)), "mount_setattr")


def separate() -> None:
    """Give up root, and enter own namespaces as an ordinary user of them."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    user, members = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(SPACES), "unshare")
    _LIBC.prctl(4, 1, 0, 0, 0)  # else /proc/self belongs to root, and cannot be written
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{USER} {user} 1"),
        ("gid_map", f"{USER} {members} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def build(home: str, size: int, files: int) -> None:
    """A new root: system folders read-only, an empty work folder and /tmp, and nothing else."""
    _mount("none", "/", None, 0x4000 | 0x40000)  # private
    root = "/tmp"  # a mount there hides the host's, in this namespace alone
    bare = 2 | 4  # nosuid, nodev
    _mount("tmpfs", root, "tmpfs", bare, "size=256k,mode=755")
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")
        elif os.path.isdir(f"/{name}"):
            os.mkdir(f"{root}/{name}")
            _mount(f"/{name}", f"{root}/{name}", None, 0x1000 | 0x4000)
    for path in HIDDEN:
        if os.path.isdir(f"{root}{path}"):
            _mount("tmpfs", f"{root}{path}", "tmpfs", bare, "size=4k,mode=755")
    for path in ("etc", "dev", "proc", "tmp", home.strip("/")):
        os.makedirs(f"{root}/{path}", exist_ok=True)
    for path, text in (("passwd", f"{USER}::{home}:/bin/bash\n"), ("group", "\n")):
        with open(f"{root}/etc/{path}", "w") as file:
            file.write(f"agent:x:{USER}:{text}")
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        if os.path.isdir(path):
            os.mkdir(root + path)
        elif os.path.exists(path):
            os.close(os.open(root + path, os.O_CREAT))
        else:
            continue
        _mount(path, root + path, None, 0x1000 | 0x4000)
    for name in ("null", "zero", "full", "random", "urandom"):
        os.close(os.open(f"{root}/dev/{name}", os.O_CREAT))
        _mount(f"/dev/{name}", f"{root}/dev/{name}", None, 0x1000)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    _mount("proc", f"{root}/proc", "proc", bare | 8, "subset=pid,hidepid=2")
    room = f"size={size},nr_inodes={files},mode=755"
    for path in (home, "/tmp"):
        _mount("tmpfs", root + path, "tmpfs", bare, room)
    _attributes(root, 1 | 2, 0, deep=True)  # read-only, nosuid
    for path in (home, "/tmp"):
        _attributes(root + path, 0, 1, deep=False)
    os.chdir(root)
    _check(_LIBC.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(_LIBC.umount2(b".", 2), "umount of the old root")
    os.chdir("/")
    _LIBC.sethostname(b"shell", 5)


def unpack(folder: bytes, home: str) -> None:
    """Write a packed folder to `home`, with one time of change for everything."""
    top = home.encode()
    late = []
    for kind, path, mode, data in entries(folder):
        full = top + b"/" + path
        if kind == b"d":
            os.mkdir(full, 0o700)
            late.append((full, mode))
            continue
        if kind == b"l":
            os.symlink(data, full)
        else:
            with open(full, "wb") as file:
                file.write(data)
            os.chmod(full, mode)
        os.utime(full, (CLOCK, CLOCK), follow_symlinks=False)
    for full, mode in reversed(late):
        os.chmod(full, mode)
        os.utime(full, (CLOCK, CLOCK))
    os.utime(top, (CLOCK, CLOCK))


def pack(home: str, most: int) -> bytes | None:
    """The folder as bytes, sorted by path; None when it is over `most`, or too deep to walk.

    Files, folders and links are kept; sockets and pipes are not. Nothing is followed.
    """
    top = home.encode()
    found: list[tuple[bytes, bytes, int, bytes]] = []
    total, waiting = 0, [b""]
    try:
        while waiting:
            inner = waiting.pop()
            with os.scandir(top + b"/" + inner) as held:
                for each in held:
                    path = inner + b"/" + each.name if inner else each.name
                    about = each.stat(follow_symlinks=False)
                    mode, data = stat.S_IMODE(about.st_mode), b""
                    if stat.S_ISDIR(about.st_mode):
                        kind = b"d"
                        waiting.append(path)
                    elif stat.S_ISLNK(about.st_mode):
                        kind, data = b"l", os.readlink(each.path)
                        mode = 0o777
                    elif stat.S_ISREG(about.st_mode):
                        kind = b"f"
                        total += about.st_size
                        if total > most:
                            return None
                        wanted = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                        with os.fdopen(os.open(each.path, wanted), "rb") as file:
                            data = file.read()
                    else:
                        continue
                    total += ENTRY.size + len(path)
                    found.append((path, kind, mode, data))
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return None
        raise
    if total > most:
        return None
    return b"".join(entry(kind, path, mode, data) for path, kind, mode, data in sorted(found))


# -- the command -------------------------------------------------------------------------------


def confine(
    seconds: float, memory: int, file: int, processes: int, opened: int, program: bytes
) -> None:
    """Limits, no capabilities, no new ones, and the filter; for the rest of this process."""
    none = resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE
    for name, most in (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, opened),
        (resource.RLIMIT_STACK, 8 << 20),
        *((each, 0) for each in none),
    ):
        resource.setrlimit(name, (most, most))
    for capability in range(64):
        _LIBC.prctl(24, capability, 0, 0, 0)
    head = struct.pack("<Ii", 0x20080522, 0)
    _check(_LIBC.capset(head, bytes(24)), "capset")
    _check(_LIBC.prctl(38, 1, 0, 0, 0), "no_new_privs")
    held = ctypes.create_string_buffer(program, len(program))
    address = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    _check(_LIBC.prctl(22, 2, address, 0, 0), "seccomp")


def _resident() -> int:
    """Bytes that the jail's processes hold in memory; shared pages count for each."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdecimal() and name != "1":
            try:
                with open(f"/proc/{name}/statm") as file:
                    total += int(file.read().split()[1])
            except (OSError, IndexError):
                continue
    return total * os.sysconf("SC_PAGE_SIZE")


def watch(child: int, pipe: int, seconds: float, memory: int, most: int) -> tuple[int, int, bytes]:
    """(which limit cut it, exit code, output) once nothing of the command is left alive."""
    deadline, looked = time.monotonic() + seconds, 0.0
    said, cut, code, at_end = bytearray(), 0, None, False
    poller = select.poll()
    poller.register(pipe)
    while code is None and not cut:
        if at_end:
            time.sleep(0.002)
        elif poller.poll(20):
            piece = os.read(pipe, 65536)
            at_end = not piece
            said += piece
        while code is None:
            found, status = _reaped(os.WNOHANG)
            if found <= 0:
                break
            if found == child:
                code = os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if len(said) > most:
            cut = CUTS.index("OUTPUT_LIMIT")
        elif code is None and now > deadline:
            cut = CUTS.index("TIMEOUT")
        elif code is None and now - looked > 0.02:
            looked = now
            if _resident() > memory:
                cut = CUTS.index("MEMORY_LIMIT")
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        if _reaped(0)[0] < 0:
            break
    os.set_blocking(pipe, False)
    while not cut and not at_end:
        try:
            piece = os.read(pipe, 65536)
        except BlockingIOError:
            break
        at_end = not piece
        said += piece
        if len(said) > most:
            cut = CUTS.index("OUTPUT_LIMIT")
    code = code or 0
    return cut, code if code >= 0 else 128 - code, bytes(said)


def _reaped(flags: int) -> tuple[int, int]:
    try:
        return os.waitpid(-1, flags)
    except ChildProcessError:
        return -1, 0


def keep(request: bytes) -> bytes:
    """Process 1: build, run, watch, pack; the answer."""
    seconds, memory, size, file, output, processes, opened, files, writes, *lengths = (
        REQUEST.unpack_from(request)
    )
    parts, at = [], REQUEST.size
    for length in lengths:
        parts.append(request[at : at + length])
        at += length
    command, home_bytes, start, program, folder = parts
    home = home_bytes.decode()
    _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # dies with the outer process
    build(home, size, files)
    _LIBC.prctl(4, 0, 0, 0, 0)  # its memory and descriptors are nobody else's
    os.umask(0)
    unpack(folder, home)
    if not writes:
        _attributes(home, 1, 0, deep=False)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.umask(0o022)
            nothing = os.open("/dev/null", os.O_RDONLY)
            for number, source in enumerate((nothing, writing, writing)):
                os.dup2(source, number)
            os.closerange(3, 1024)
            os.chdir(start)
            confine(seconds, memory, file, processes, opened, program)
            os.execve("/bin/bash", [b"bash", b"-c", command], {**SURROUNDINGS, "HOME": home})
        except BaseException as error:
            os.write(2, f"jail: {error}".encode())
        finally:
            os._exit(126)
    os.close(writing)
    cut, code, said = watch(child, reading, seconds, memory, output)
    packed: bytes | None = b""
    if writes and not cut:
        packed = pack(home, size)
        if packed is None:
            cut, packed = CUTS.index("FOLDER_LIMIT"), b""
    return ANSWER.pack(cut, code, len(said), len(packed or b"")) + said + (packed or b"")


def serve_one(request: bytes, out: int) -> None:
    """The outer process of a request; does not return. Exit code 3 when there can be no jail."""
    try:
        _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)
        separate()
        child = os.fork()
        if child:
            signal.alarm(int(REQUEST.unpack_from(request)[0]) + 20)
            _, status = os.waitpid(child, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        answer = memoryview(keep(request))
        while answer:
            answer = answer[os.write(out, answer) :]
        os._exit(0)
    except BaseException as error:
        os.write(out, (str(error) or repr(error)).encode())
        os._exit(3)


def main() -> None:
    """Answer requests from standard input one after another, each in processes of its own."""
    source, sink = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    while len(head := source.read(REQUEST.size)) == REQUEST.size:
        request = head + source.read(sum(REQUEST.unpack(head)[-5:]))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            serve_one(request, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            said = file.read()
        _, status = os.waitpid(child, 0)
        sink.write(REPLY.pack(os.waitstatus_to_exitcode(status), len(said)) + said)
        sink.flush()


if __name__ == "__main__":
    main()
