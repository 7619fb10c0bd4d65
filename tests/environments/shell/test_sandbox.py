"""The jail: each escape is tried, fails inside, and leaves the host alone."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenhand
from evenhand.environments.shell import jail, sandbox
from evenhand.environments.shell.folder import Entry, file, packed, unpacked
from evenhand.environments.shell.sandbox import LIMITS, Ran, run
from evenhand.errors import EvenhandError, InfrastructureError, UserError

pytestmark = pytest.mark.skipif(
    sandbox.unavailable() is not None, reason=sandbox.unavailable() or "there is a jail"
)
FOLDER = packed({"a.txt": file("one\n"), "deep/b.txt": file("two\n"), "c.sh": file("x\n", 0o755)})
CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
SHORT = replace(LIMITS, seconds=1.0)


def said(ran: Ran) -> str:
    return ran.output.decode(errors="replace")


def python(code: str, **named: object) -> Ran:
    """Run Python inside, past what bash itself can do."""
    assert "'" not in code
    return run(f"/usr/bin/python3 -c '{code}'", b"", **named)  # type: ignore[arg-type]


needs_python = pytest.mark.skipif(
    not os.path.exists("/usr/bin/python3"), reason="no Python under /usr to try it with"
)


# -- what it is for ----------------------------------------------------------------------------


def test_folder_goes_in_and_comes_out() -> None:
    ran = run("cat a.txt; mkdir new; echo $((6*7)) > new/x; chmod 600 c.sh; rm deep/b.txt", FOLDER)
    assert (ran.cut, ran.code, said(ran)) == ("", 0, "one\n")
    tree = unpacked(ran.folder)
    assert tree[b"new/x"] == Entry("f", b"42\n", 0o644) and tree[b"c.sh"].mode == 0o600
    assert tree[b"deep"].kind == "d" and b"deep/b.txt" not in tree


def test_same_bytes_again_whatever_the_path_there() -> None:
    command = "find . | xargs ls -ld; date -r a.txt; find . -type f | md5sum; echo $$ $PPID"
    assert run(command, FOLDER) == run(command, FOLDER)
    one = run("touch z; touch y; mkdir -p q/w; echo 1 >> a.txt", FOLDER).folder
    other = run("mkdir q; echo 1 >> a.txt; mkdir q/w; touch y z", FOLDER).folder
    assert one == other and run(command, one) == run(command, other)


def test_reading_jail_cannot_write() -> None:
    ran = run("echo x > a.txt; touch n; rm c.sh; chmod 777 a.txt; cat a.txt", FOLDER, writes=False)
    assert said(ran).count("Read-only file system") == 4 and said(ran).endswith("one\n")
    assert ran.folder == FOLDER


def test_exit_codes_and_both_outputs_in_order() -> None:
    ran = run("echo a; echo b >&2; echo c; exit 7", b"")
    assert (ran.code, said(ran)) == (7, "a\nb\nc\n")
    assert run("kill -9 $$", b"").code == 137
    assert "command not found" in said(run("no_such_command", b""))


def test_odd_names_bytes_links_and_modes_survive() -> None:
    ran = run(
        "printf 'a\\xff\\x00b' > $'n\\xfe \\n.'; ln -s /etc/shadow out; ln -s ../../.. up;"
        " mkdir closed; touch closed/in; chmod 000 closed; touch shut; chmod 000 shut; mkfifo pipe",
        b"",
    )
    tree = unpacked(ran.folder)
    assert tree[b"n\xfe \n."].data == b"a\xff\x00b" and b"pipe" not in tree
    assert tree[b"out"] == Entry("l", b"/etc/shadow", 0o777) and tree[b"closed/in"].data == b""
    assert tree[b"closed"].mode == 0 and tree[b"shut"].mode == 0
    assert run("true", ran.folder).folder == ran.folder


def test_nul_is_refused_and_wrong_surrogates_do_no_harm() -> None:
    with pytest.raises(ValueError, match="NUL"):
        run("echo \0", b"")
    assert said(run("echo \ud800", b"")) == "?\n"


# -- reading what is the host's ----------------------------------------------------------------


def test_host_files_are_not_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the host's own words")
    tmp_path.chmod(0o777)
    package = Path(evenhand.__file__).parent
    for path in ("/etc/shadow", str(secret), str(package / "errors.py"), "/root", "/home", "/sys"):
        ran = run(f"cat {path}; ls {path}; ls /proc/1/root{path}; cd /proc/1/cwd", b"")
        assert "No such file" in said(ran) and "host's own" not in said(ran), path
        assert "class " not in said(ran)
    listed = said(run("ls -A / ; ls -A /tmp /usr/local", b"")).split()
    assert not set(listed) & {"root", "home", "var", "media", "mnt", "srv", "run", "boot", "sys"}


def test_links_and_dots_on_the_way_lead_nowhere(tmp_path: Path) -> None:
    target = tmp_path / "victim.txt"
    target.write_text("untouched")
    tmp_path.chmod(0o777)
    target.chmod(0o666)
    links = run(f"ln -s {target} l; ln -s {tmp_path} d; ln -s / r", b"").folder
    ran = run(f"cat l; echo gone > l; echo gone > d/victim.txt; cat r{target}; ls r/root", links)
    assert "untouched" not in said(ran) and target.read_text() == "untouched"
    assert all(entry.kind == "l" for entry in unpacked(ran.folder).values())


@pytest.mark.parametrize(
    "record",
    [
        jail.entry(b"f", b"../escape", 0o644, b"x"),
        jail.entry(b"f", b"/tmp/escape", 0o644, b"x"),
        jail.entry(b"f", b"a/../../escape", 0o644, b"x"),
        jail.entry(b"l", b"d", 0o777, b"/tmp") + jail.entry(b"f", b"d/escape", 0o644, b"x"),
        jail.entry(b"b", b"device", 0o644, b""),
        jail.entry(b"f", b"b", 0o644, b"") + jail.entry(b"f", b"a", 0o644, b""),
        jail.entry(b"f", b"cut", 0o644, b"long")[:-2],
    ],
)
def test_forged_folders_are_refused_and_harmless(record: bytes) -> None:
    with pytest.raises(EvenhandError, match="work folder"):
        unpacked(record)
    with contextlib.suppress(EvenhandError):  # even unchecked it meets only the jail's own root
        run("true", record)
    assert not Path("/tmp/escape").exists() and not Path("/escape").exists()


@given(st.dictionaries(st.text("ab.", min_size=1, max_size=3), st.binary(max_size=9), max_size=6))
@settings(max_examples=60, deadline=None)
def test_packing_is_its_own_inverse(held: dict[str, bytes]) -> None:
    tree = {name: Entry("f", data) for name, data in held.items() if name not in (".", "..")}
    assert {k.decode(): v for k, v in unpacked(packed(tree)).items()} == tree


# -- reaching out ------------------------------------------------------------------------------


@needs_python
def test_no_network() -> None:
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    server.settimeout(0.2)
    port = server.getsockname()[1]
    ran = run(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected", b"")
    assert ran.code != 0 and "connected" not in said(ran)
    for kind in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"):
        ran = python(f"import socket; socket.socket(socket.{kind}, socket.SOCK_DGRAM)")
        assert "Address family not supported" in said(ran), kind
    with pytest.raises(TimeoutError):
        server.accept()
    server.close()
    # The host's own socket files and abstract names are out of reach, too.
    name = f"\0evenhand-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        code = f'import socket; socket.socket(socket.AF_UNIX).connect(chr(0)+"{name[1:]}")'
        assert "refused" in said(python(code))


def test_host_processes_are_neither_seen_nor_hit() -> None:
    victim = subprocess.Popen(["sleep", "60"])
    try:
        ran = run(f"ls /proc; kill -9 {victim.pid}; kill -9 -1; echo $$", b"", limits=SHORT)
        assert str(victim.pid) not in said(ran).split("kill")[0].split()
        assert victim.poll() is None
        assert "No such process" in said(ran)
    finally:
        victim.kill()
        victim.wait()


def test_keeper_cannot_be_touched() -> None:
    ran = run("kill -9 1; kill -15 1; ls -l /proc/1; cat /proc/1/environ; ls /proc; echo on", b"")
    assert said(ran).endswith("on\n") and "\n1\n" not in said(ran)
    assert said(ran).count("No such file") == 2


@needs_python
def test_mounts_namespaces_and_devices_are_refused() -> None:
    ran = run("mount -t tmpfs x /tmp; umount /proc; unshare -Ur true; mknod d b 8 0; echo $?", b"")
    assert said(ran).endswith("1\n") and unpacked(ran.folder) == {}
    calls = {
        "mount": 'mount(0,b"/tmp",b"tmpfs",0,0)',
        "remount": 'mount(0,b"/",0,0x20|0x1000,0)',
        "umount": 'umount2(b"/proc",2)',
        "unshare": "unshare(0x10000000)",
        "chroot": 'chroot(b"/tmp")',
        "memfd": 'memfd_create(b"x",0)',
        "ptrace": "ptrace(16,1,0,0)",
        "clone": f"syscall({CLONE},0x10000000,0,0,0,0)",
    }
    for name, call in calls.items():
        load = "import ctypes; c=ctypes.CDLL(None,use_errno=True)"
        ran = python(f"{load}; print(c.{call}, ctypes.get_errno())")
        assert said(ran) == "-1 1\n", name
    status = said(run("grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status", b"")).split()
    assert status[1::2] == ["0" * 16, "0" * 16, "1", "2"]


def test_system_is_read_only_and_setuid_has_no_power() -> None:
    ran = run(
        "for p in / /usr /etc /dev /proc /usr/bin /work/..; do touch $p/x 2>/dev/null && echo $p;"
        " done; echo y > /etc/passwd; cp /usr/bin/id i; chmod 4755 i; ./i -u; su -c id; id -u",
        b"",
    )
    assert "Read-only" in said(ran) and said(ran).endswith("1000\n")
    assert not any(line.startswith("/") for line in said(ran).splitlines())


def test_nothing_outlives_its_command() -> None:
    mark = f"4{time.time_ns() % 10**9}"
    start = time.monotonic()
    ran = run(f"(setsid sleep {mark} &) ; nohup sleep {mark} & disown; echo left", b"")
    assert said(ran) == "left\n" and time.monotonic() - start < 4
    assert not _alive(mark)
    assert said(run("ls /tmp; echo here > /tmp/x", b"")) == "" == said(run("ls /tmp", b""))


def _alive(word: str) -> bool:
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in each.read_bytes():
                return True
        except OSError:
            continue
    return False


# -- using the machine up ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "cut"),
    [
        ("sleep 1000", "TIMEOUT"),
        ("trap '' TERM INT HUP; while :; do :; done", "TIMEOUT"),
        ("exec >&- 2>&-; sleep 1000", "TIMEOUT"),
        ("kill -STOP $$", "TIMEOUT"),
        ("yes", "OUTPUT_LIMIT"),
        ("yes >&2 &", ""),
        ("cat /dev/zero", "OUTPUT_LIMIT"),
    ],
)
def test_endless_commands_are_ended(command: str, cut: str) -> None:
    ran = run(f"touch trace; {command}", FOLDER, limits=SHORT)
    assert ran.cut == cut or (cut == "" and ran.cut in ("", "OUTPUT_LIMIT"))
    assert (ran.folder == FOLDER) == bool(ran.cut)


def test_fork_bomb() -> None:
    ran = run("b() { b | b & b; }; b", b"", limits=SHORT)
    assert ran.cut in ("", "TIMEOUT", "OUTPUT_LIMIT", "MEMORY_LIMIT")
    count = "for i in $(seq 200); do sleep 3 & done 2>/dev/null; ls /proc | grep -c '^[0-9]'"
    seen = said(run(count, b"", limits=SHORT)).split()
    assert not seen or int(seen[-1]) <= LIMITS.processes
    assert said(run("echo well", b"")) == "well\n"


@needs_python
def test_memory_bombs() -> None:
    assert "MemoryError" in said(python("x = bytearray(1 << 40)"))
    assert "MemoryError" in said(python("x = [bytearray(1 << 24) for _ in range(1000)]"))
    many = (
        'for i in $(seq 20); do /usr/bin/python3 -c \'import time; x = b"x" * (100 << 20);'
        " time.sleep(9)' & done; wait"
    )
    assert run(many, b"").cut == "MEMORY_LIMIT"


def test_full_disk_and_large_files() -> None:
    fill = "for i in $(seq 100); do head -c 4M /dev/zero > f$i || break; done; rm -f f*; echo on"
    ran = run(fill, FOLDER)
    assert "No space left" in said(ran) and said(ran).endswith("on\n") and ran.folder == FOLDER
    assert run("head -c 1G /dev/zero > big", FOLDER).code != 0
    assert run("head -c 1G /dev/zero > /tmp/big", FOLDER).code != 0
    sparse = run("for i in 1 2 3 4; do truncate -s 7M s$i; done", FOLDER)
    assert (sparse.cut, sparse.folder) == ("FOLDER_LIMIT", FOLDER)
    assert "No space" in said(run("touch $(seq 5000)", FOLDER))


def test_endlessly_deep_folder_is_refused_not_walked() -> None:
    deep = "for i in $(seq 40); do mkdir $(printf 'd%.0s' $(seq 200)); cd dd*; done"
    ran = run(deep, FOLDER)
    assert (ran.cut, ran.folder) == ("FOLDER_LIMIT", FOLDER)


# -- the host's side ---------------------------------------------------------------------------


def test_many_threads_at_once_and_after_a_fork() -> None:
    got: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: got.append(said(run(f"echo {n}", b""))))
        for n in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(got) == sorted(f"{n}\n" for n in range(8))
    child = os.fork()
    if child == 0:
        os._exit(0 if said(run("echo child", b"")) == "child\n" else 1)
    assert os.waitpid(child, 0)[1] == 0 and said(run("echo parent", b"")) == "parent\n"


def test_jailer_that_died_is_an_infrastructure_failure_and_is_replaced() -> None:
    run("true", b"")
    for each in list(sandbox._idle):
        each.kill()
        each.wait()
    with pytest.raises(InfrastructureError):
        for _ in range(len(sandbox._idle)):
            run("true", b"")
    sandbox._idle.clear()
    assert run("echo back", b"").output == b"back\n"


def test_without_namespaces_a_plain_refusal() -> None:
    """The real thing: this process may make no namespace, as in a strict container."""
    code = (
        "import ctypes, os, resource, struct; c = ctypes.CDLL(None);\n"
        "n = 272 if os.uname().machine == 'x86_64' else 97;\n"
        "p = b''.join(struct.pack('<HBBI', *x) for x in"
        " [(0x20,0,0,0),(0x15,0,1,n),(6,0,0,0x50001),(6,0,0,0x7fff0000)]);\n"
        "h = ctypes.create_string_buffer(p, len(p));\n"
        "assert c.prctl(38,1,0,0,0) == 0;\n"
        "assert c.prctl(22,2,struct.pack('@HP',4,ctypes.addressof(h)),0,0) == 0;\n"
        "import sys; from evenhand.cli import main; sys.argv = ['evenhand', *sys.argv[1:]]; main()"
    )
    for words in (["environments", "gold", "shell"], ["check-environment", "shell"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        text = " ".join((done.stderr + done.stdout).split())
        assert "user namespaces" in text and "never run without a jail" in text
    listed = subprocess.run(
        [sys.executable, "-c", code, "environments", "list"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "shell  (environment shell needs" in listed.stdout


def test_need_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "unavailable", lambda: sandbox.REFUSAL.format("a reason"))
    with pytest.raises(UserError, match="a reason"):
        sandbox.need()
