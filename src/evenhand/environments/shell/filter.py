"""Which system calls a jailed command may not make: a classic BPF program for seccomp."""

from __future__ import annotations

import errno
import functools
import struct

from evenhand.environments.shell.jail import SPACES

# System calls: memory that no limit counts, namespaces and mounts, other processes' memory, keys,
# kernel surfaces. Then clone, clone3 and socket, of which some uses are let through.
_REFUSED = {
    "x86_64": (
        319, 447, 29, 64, 68, 240, 272, 308, 165, 166, 155, 161, 428, 429, 430, 442, 101, 310, 311,
        248, 249, 250, 321, 298, 323, 425, 304, 167, 169, 175, 246, 313,
    ),
    "aarch64": (
        279, 447, 194, 190, 186, 180, 97, 268, 40, 39, 41, 51, 428, 429, 430, 442, 117, 270, 271,
        217, 218, 219, 280, 241, 282, 425, 265, 224, 142, 105, 104, 273,
    ),
}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, 56, 435, 41), "aarch64": (0xC00000B7, 220, 435, 198)}


@functools.cache
def program(machine_name: str) -> bytes:
    """The filter of a machine, as the kernel takes it; KeyError when it is not known here."""
    machine, clone, clone3, socket = _MACHINES[machine_name]

    def put(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("<HBBI", code, yes, no, value)

    def refuse(number: int) -> bytes:
        return put(0x06, 0x50000 | number)

    load, equal, above, bits, end = 0x20, 0x15, 0x35, 0x45, 0x06
    allow = put(end, 0x7FFF0000)
    kill = put(end, 0x80000000)
    program = [put(load, 4), put(equal, machine, 1, 0), kill, put(load, 0)]
    program += [put(above, 0x40000000, 0, 1), kill]  # the other calling convention of x86-64
    for number in _REFUSED[machine_name]:
        program += [put(equal, number, 0, 1), refuse(errno.EPERM)]
    program += [put(equal, clone3, 0, 1), refuse(errno.ENOSYS)]  # its flags cannot be looked at
    program += [put(equal, clone, 0, 4), put(load, 16), put(bits, SPACES & ~0x80, 0, 1)]
    program += [refuse(errno.EPERM), allow]
    # Sockets of this namespace alone: a virtual machine's own (AF_VSOCK) knows no namespaces.
    program += [put(equal, socket, 0, 4), put(load, 16), put(equal, 1, 0, 1), allow]
    program += [refuse(errno.EAFNOSUPPORT), allow]
    return b"".join(program)
