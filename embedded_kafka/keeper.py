"""A process between Python and a broker: it ends the broker when Python dies, however it dies.

Run as a script with the standard library only: `keeper.py PARENT_PID LOG_FILE PID_FILE SCRATCH COMMAND...`.

* The parent ends (kill -9 included): its pidfd becomes readable, the broker is killed, SCRATCH is removed.
* The keeper itself is killed: the kernel kills the broker (PR_SET_PDEATHSIG). That signal is tied to the *thread*
  that started the child, which is why the parent, who may start a cluster from a worker thread, does not set it
  itself; the keeper has one thread.
* The broker ends: the keeper ends with its exit code.
* SIGTERM is passed on, which is how a broker is stopped cleanly.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> int:
    """Run the command until it ends or the parent does.

    Args:
        arguments: parent's pid, file for the output, file for the pid, folder to remove when the parent
            dies ("" for none), then the command.

    Returns:
        The command's exit code (128 + signal when a signal ended it); 1 when the parent went first.
    """
    parent_pid, log_file, pid_file, scratch, *command = arguments
    try:
        parent_fd = os.pidfd_open(int(parent_pid))
    except ProcessLookupError:
        return 1
    if os.getppid() != int(parent_pid):  # it died before the line above, and its number was given away
        return 1
    signal.pthread_sigmask(
        signal.SIG_SETMASK, ()
    )  # a mask is inherited; a parent may block SIGTERM for itself
    libc = ctypes.CDLL(None)
    own_pid = os.getpid()

    def die_with_keeper() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != own_pid:
            os._exit(1)

    with Path(log_file).open("ab") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_keeper
        )

    def pass_on(signum: int, frame: FrameType | None) -> None:
        child.send_signal(signum)

    signal.signal(signal.SIGTERM, pass_on)
    Path(pid_file).write_text(str(child.pid))
    child_fd = os.pidfd_open(child.pid)
    poll = select.poll()
    poll.register(parent_fd, select.POLLIN)
    poll.register(child_fd, select.POLLIN)
    ready = {fd for fd, _ in poll.poll()}
    if child_fd not in ready:
        child.kill()
        child.wait()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
        return 1
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
