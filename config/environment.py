"""Values from the environment: ``${NAME}`` in the strings of a configuration.

For what differs between gateways that share one file, such as the name of a pod. The strings of the parsed file are
replaced, so a variable can neither add a key nor change a type, and what it contains is not looked through again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from config.section_base import Key

# `$${` is the text `${`. A dollar before anything else is a dollar, as in principal mapping rules.
_REFERENCE: Final = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<wrong>\$\{)")


class Substitution:
    """The tables of a file with the variables replaced.

    Attributes:
        tables: as they are to be validated.
        variables: the names of the variables in each string that has some, by the key of the string.
        faults: strings that cannot be replaced: the key, and what is wrong.
    """

    def __init__(self, tables: dict[str, Any], environment: Mapping[str, str]) -> None:
        """Replace the variables.

        Args:
            tables: from a TOML file.
            environment: names and values.
        """
        self._environment = environment
        self.variables: dict[Key, list[str]] = {}
        self.faults: list[tuple[Key, str]] = []
        self.tables: dict[str, Any] = self._replaced(tables, ())

    def _replaced(self, value: Any, key: Key) -> Any:
        if isinstance(value, dict):
            return {name: self._replaced(each, (*key, name)) for name, each in value.items()}
        if isinstance(value, list):
            return [self._replaced(each, (*key, at)) for at, each in enumerate(value)]
        if isinstance(value, str):
            return _REFERENCE.sub(lambda found: self._text(found, key), value)
        return value

    def _text(self, found: re.Match[str], key: Key) -> str:
        if found["escaped"]:
            return "${"
        if found["wrong"]:
            self.faults.append((key, "${ begins no ${NAME}; write $${ for the text ${"))
            return ""
        name = found["name"]
        self.variables.setdefault(key, []).append(name)
        if name not in self._environment:
            self.faults.append((key, f"the environment has no variable {name}; write $${{ for the text ${{"))
            return ""
        return self._environment[name]
