"""The base of all sections: no unknown keys, no conversions except of units, named ranges."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from config.host_port import MAX_PORT
from quotas.units import KINDS, Kind, UnitError, amount_of

FAULTS: Final = "config_faults"  # the error type of `faults_error`

MAX_INT32: Final = 2**31 - 1  # Kafka's INT, the type of its sizes, counts and times

Port: TypeAlias = Annotated[int, Field(ge=1, le=MAX_PORT)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INT32)]
CountOrZero: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT32)]
# The number of things that each take a descriptor or memory at once.
SmallCount: TypeAlias = Annotated[int, Field(ge=1, le=100_000)]
# A bound below 1 KiB would not be useful for frames: heads alone may be that long.
Bytes: TypeAlias = Annotated[int, Field(ge=1024, le=MAX_INT32)]
Milliseconds: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INT32)]
# Each sensor keeps this many samples, so the number costs memory. An hour is longer than any client waits.
WindowNum: TypeAlias = Annotated[int, Field(ge=1, le=1000)]
WindowSeconds: TypeAlias = Annotated[int, Field(ge=1, le=3600)]
# Each tracker takes memory as long as its client is active.
MaxTrackers: TypeAlias = Annotated[int, Field(ge=1, le=10_000_000)]
NonEmpty: TypeAlias = Annotated[str, Field(min_length=1)]
# A name of a listener, upstream or gateway. It is valid as a metric's label and in a file's name.
ShortName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]

WITHOUT_SECRET: Final = "without effect, since there is no secret_file; remove it, or give secret_file"

Key: TypeAlias = tuple[str | int, ...]
"""The path of a key in the file."""


def faults_error(faults: list[tuple[Key, str]]) -> PydanticCustomError:
    """An error of a whole model that names single keys.

    Args:
        faults: the path of each key, from the model that raises, and the fault of its value.
    """
    return PydanticCustomError(FAULTS, "contradictory settings", {"faults": faults})


_KINDS: Final[dict[str, Kind]] = {
    **{str(key): kind for key, kind in KINDS.items()},
    "max_connection_creation_rate": Kind.WHOLE_RATE,
}


def kind_of(key: str) -> Kind | None:
    """The kind of a key's number; None: it has no unit."""
    if key.endswith("_bytes_per_s"):
        return Kind.BYTE_RATE
    return Kind.SIZE if key.endswith("_bytes") else _KINDS.get(key)


class Section(BaseModel, frozen=True, extra="forbid", strict=True):
    """The base of all sections. A model never changes after it was read."""

    @model_validator(mode="before")
    @classmethod
    def _without_units(cls, data: Any) -> Any:
        """Turns an amount such as "10MB" into its number. A faulty one stays a text and is reported as such."""
        if not isinstance(data, dict):
            return data
        found = dict(data)
        for name, value in data.items():
            if isinstance(value, str) and (kind := kind_of(str(name))) is not None:
                with suppress(UnitError):
                    found[name] = amount_of(value, kind)
        return found
