"""A command line whose process dies with the one that started it, however that one ends.

Linux only (PR_SET_PDEATHSIG, prctl(2)). A small launcher asks for the signal, checks that the parent did not die
before it could ask, and becomes the command, so the child's pid is the command's. ``preexec_fn`` would do the same
but is not safe in a process with threads. The kernel watches the *thread* that started the child: start children from
one that lives as long as the process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

_LAUNCHER = """
import ctypes, os, sys
parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if ctypes.CDLL(None, use_errno=True).prctl(1, number, 0, 0, 0) != 0:
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != parent:
    sys.exit("the parent process is gone")
os.execvp(command[0], command)
"""


def bound_to_parent(command: Sequence[str], *, death_signal: int = signal.SIGKILL) -> list[str]:
    """``command`` behind the launcher; the calling process must start it itself, without a shell or wrapper."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(death_signal)), *command]
