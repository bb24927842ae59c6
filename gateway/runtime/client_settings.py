"""Settings of librdkafka's clients that may change while a client lives: passwords, tokens, certificates.

A new client gets the current settings. A running client gets a new password without losing its connections. For new
certificates it has to be replaced, since librdkafka reads them only once. Its owner does so when the client is idle.
librdkafka itself requests tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaException


class Revision(NamedTuple):
    """Numbers that change with the settings.

    Attributes:
        password: increases with each new password.
        certificate: increases with each new set of certificate files.
    """

    password: int = 0
    certificate: int = 0


class ClientSettings(Mapping[str, Any]):
    """The current settings. They may contain passwords, so their `repr` does not show them."""

    def __init__(
        self,
        settings: Callable[[], Mapping[str, Any]] = dict,
        revision: Callable[[], Revision] = Revision,
    ) -> None:
        """Create the mapping.

        Args:
            settings: returns the current settings; raises KafkaException without credentials. Called in any thread.
            revision: returns the current `Revision`. Called in any thread.
        """
        self._settings = settings
        self.revision = revision

    def __getitem__(self, key: str) -> Any:
        return self._settings()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings())

    def __len__(self) -> int:
        return len(self._settings())

    def __repr__(self) -> str:
        return f"ClientSettings({', '.join(self)})"


class ClientAge:
    """Compares a client with the current settings. For one client after the other, in one thread."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Args: settings: the client's settings, which may also be a mapping that never changes."""
        self._revision = settings.revision if isinstance(settings, ClientSettings) else Revision
        self._settings = settings
        self._made = self._revision()

    def begin(self) -> None:
        """Note the current revision; call it before creating a client."""
        self._made = self._revision()

    def outdated(self, client: Any) -> bool:
        """Give the client a new password if there is one; returns whether it has to be replaced."""
        now = self._revision()
        if now == self._made:
            return False
        if now.password != self._made.password:
            with suppress(KafkaException):  # then the next call tries again
                settings = dict(self._settings)
                client.set_sasl_credentials(settings["sasl.username"], settings["sasl.password"])
                self._made = self._made._replace(password=now.password)
        return now.certificate != self._made.certificate
