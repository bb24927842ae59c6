"""Output of commands whose exit code counts, also where the reader of the output has gone."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def show(text: str, *, end: str = "\n", error: bool = False) -> bool:
    """Print to standard output or standard error. A reader that has gone does not end the command.

    Returns:
        Whether there was a reader.
    """
    stream = sys.stderr if error else sys.stdout
    try:
        print(text, end=end, file=stream, flush=True)
    except BrokenPipeError:
        discard(stream)
        return False
    return True


def discard(stream: TextIO) -> None:
    """Send what is still to come nowhere: Python would complain once more when it closes the stream."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
