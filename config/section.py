"""What the models of all sections have in common: no unknown keys, no conversions, ranges by name."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import BaseModel, Field
from pydantic_core import PydanticCustomError

from config.address import MAX_PORT

FAULTS: Final = "config_faults"  # the error type of `faults_error`

MAX_INT32: Final = 2**31 - 1

Port: TypeAlias = Annotated[int, Field(ge=1, le=MAX_PORT)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INT32)]
Bytes: TypeAlias = Annotated[int, Field(ge=1024, le=MAX_INT32)]
Milliseconds: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INT32)]
WindowNum: TypeAlias = Annotated[int, Field(ge=1, le=1000)]
WindowSeconds: TypeAlias = Annotated[int, Field(ge=1, le=3600)]
MaxTrackers: TypeAlias = Annotated[int, Field(ge=1, le=10_000_000)]
ConnectionRate: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INT32)]
ByteRate: TypeAlias = Annotated[int, Field(ge=1, le=2**63 - 1)]
Rate: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonEmpty: TypeAlias = Annotated[str, Field(min_length=1)]

Key: TypeAlias = tuple[str | int, ...]


def faults_error(faults: list[tuple[Key, str]]) -> PydanticCustomError:
    """An error of a model as a whole that blames single keys.

    Args:
        faults: path of a key, from the model that raises, and what is wrong with its value.
    """
    return PydanticCustomError(FAULTS, "contradictory settings", {"faults": faults})


class Section(BaseModel, frozen=True, extra="forbid", strict=True):
    """What all sections have in common: no unknown keys, no conversions, never changed after reading."""
