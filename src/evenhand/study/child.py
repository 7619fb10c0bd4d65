"""What stands between the runner and a training process: `python -m evenhand.study.child`.

It asks the kernel to end the process when its parent ends, waits until no other process writes the
run folder, and becomes the command. So a runner that was killed leaves nothing that works on, and
where the kernel cannot promise that (only Linux does), the next runner waits for what was left.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """`PARENT FOLDER COMMAND...`: become COMMAND, as a child of PARENT, once FOLDER is free."""
    parent, folder, *command = arguments
    _die_with(int(parent))
    lock = Path(folder) / "lock"
    with contextlib.suppress(FileNotFoundError), open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("waiting for the process that still writes this run", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
    os.execv(command[0], command)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    # It may have died before the promise was made.
    if os.getppid() != parent:
        sys.exit("the study's runner is gone")


if __name__ == "__main__":
    main(sys.argv[1:])
