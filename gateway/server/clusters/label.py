"""Metrics of several clusters in one text: each series of a cluster gets the label `cluster`. Pure.

Values are not parsed. Only the name at the beginning of a line is examined, so that text in the value of a label
cannot be mistaken for something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

LABEL: Final = "cluster"


def labelled(texts: Mapping[str, bytes], own: bytes = b"") -> bytes:
    """One text in Prometheus's format.

    Args:
        own: of the parent, in the same format; gets no label.
        texts: by cluster, whose name is plain text. Each is in this format, with HELP and TYPE before each family.
    """
    families: dict[bytes, _Family] = {}
    labels = {f'{LABEL}="{cluster}"'.encode(): text for cluster, text in texts.items()}
    for label, text in {b"": own, **labels}.items():
        family = _Family({}, [])
        for line in text.split(b"\n"):
            if line.startswith(b"#"):
                keyword, name = line.split(b" ", 3)[1:3]
                family = families.setdefault(name, _Family({}, []))
                # Versions of the program may differ in the description, of which only one is allowed.
                family.head.setdefault(keyword, line)
            elif line:
                family.samples.append(_with(label, line) if label else line)
    return b"".join(b"\n".join([*each.head.values(), *each.samples, b""]) for each in families.values())


class _Family(NamedTuple):
    head: dict[bytes, bytes]
    samples: list[bytes]


def _with(label: bytes, line: bytes) -> bytes:
    brace, blank = line.find(b"{"), line.find(b" ")
    if 0 <= brace < blank or blank < 0:
        return line[: brace + 1] + label + b"," + line[brace + 1 :]
    return line[:blank] + b"{" + label + b"}" + line[blank:]
