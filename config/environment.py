"""Values from the environment and from files: ``${NAME}`` and ``${file:/PATH}`` in the strings of a configuration.

Variables are for values that differ between gateways that share one file, such as the name of a pod. Files are for
secrets. Only the strings of the parsed file are replaced, so a value can neither add a key nor change a type. The
inserted text is not searched again. Where the configuration is shown, texts from files are hidden.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from config.section_base import Key
from config.value_files import ValueFiles

# `$${` is the text `${`. Any other dollar is only a dollar, as in principal mapping rules.
_REFERENCE: Final = re.compile(
    r"\$(?P<escaped>\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|\$\{file:(?P<file>[^{}]+)\}|(?P<wrong>\$\{)"
)
_HIDDEN: Final = "(hidden)"
_SHOWN_CHARS: Final = 80  # the most characters of a value in a message (config.faults)


class Substitution:
    """The tables of a file with variables and files replaced.

    Attributes:
        tables: the tables to validate.
        variables: the names of the variables in each string that has some, by the key of the string.
        files: the paths of the files in each string that has some, by the key of the string.
        faults: strings that cannot be replaced: the key and the fault.
    """

    def __init__(self, tables: dict[str, Any], environment: Mapping[str, str]) -> None:
        """Replace the variables and the files. Files are read here, each one once.

        Args:
            tables: from a TOML file.
            environment: names and values.
        """
        self._environment = environment
        self._value_files = ValueFiles(environment)
        self.variables: dict[Key, list[str]] = {}
        self.files: dict[Key, list[str]] = {}
        self.faults: list[tuple[Key, str]] = []
        self._secrets: set[str] = set()
        self.tables: dict[str, Any] = self._replaced(tables, ())
        self._shown_secrets = _pattern(self._secrets)

    def hide(self, text: str) -> str:
        """A message about the configuration without texts from files."""
        return text if self._shown_secrets is None else self._shown_secrets.sub(_HIDDEN, text)

    def _replaced(self, value: Any, key: Key) -> Any:
        if isinstance(value, dict):
            return {name: self._replaced(each, (*key, name)) for name, each in value.items()}
        if isinstance(value, list):
            return [self._replaced(each, (*key, at)) for at, each in enumerate(value)]
        if isinstance(value, str):
            replaced = _REFERENCE.sub(lambda found: self._text(found, key), value)
            if key in self.files:
                self._secrets.add(replaced)
            return replaced
        return value

    def _text(self, found: re.Match[str], key: Key) -> str:
        if found["escaped"]:
            return "${"
        if found["wrong"]:
            self.faults.append((key, "${ begins no ${NAME} and no ${file:/PATH}; write $${ for the text ${"))
            return ""
        if found["file"]:
            return self._file(found["file"], key)
        name = found["name"]
        self.variables.setdefault(key, []).append(name)
        if name not in self._environment:
            self.faults.append((key, f"the environment has no variable {name}; write $${{ for the text ${{"))
            return ""
        return self._environment[name]

    def _file(self, path: str, key: Key) -> str:
        self.files.setdefault(key, []).append(path)
        try:
            text = self._value_files.read(path)
        except ValueError as exc:
            self.faults.append((key, str(exc)))
            return ""
        self._secrets.add(text)
        return text


def _pattern(secrets: set[str]) -> re.Pattern[str] | None:
    """A pattern for secrets in a message, also for the host of ``host:port``, in the form of `config.faults`."""
    forms = secrets | {text.rpartition(":")[0] for text in secrets}
    forms |= {text.lower() for text in forms}
    forms |= {json.dumps(text)[1:-1] for text in forms}
    forms |= {form[: _SHOWN_CHARS - 1] for form in forms}
    whole = "|".join(map(re.escape, sorted(forms - {""}, key=len, reverse=True)))
    # Only whole words match. Replacing a short secret within words would make messages unreadable, and a reader would
    # not recognise it there anyway.
    return re.compile(rf"(?<![A-Za-z0-9])(?:{whole})(?![A-Za-z0-9])") if whole else None
