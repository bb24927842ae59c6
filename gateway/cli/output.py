"""Output of commands whose exit code matters, also if the reader of the output has closed."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def show(text: str, *, end: str = "\n", error: bool = False) -> bool:
    """Print to standard output or standard error. A reader that has closed does not end the command.

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
    """Discard all further output; otherwise Python would report the error again when it closes the stream."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
