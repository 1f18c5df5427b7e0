"""`python child.py PARENT COMMAND…`: becomes the command, which the kernel kills when the parent dies.

Run as a script, so that it starts in milliseconds and imports nothing of ours.
"""

import ctypes
import os
import signal
import sys

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2); exec keeps it


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        # SIGKILL, because TensorFlow swallows SIGTERM.
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(128 + signal.SIGKILL)
    try:
        os.execvp(command[0], command)  # noqa: S606 (a shell is what is not wanted)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
