"""Settings of librdkafka's clients that may change while a client lives: passwords, tokens, certificates.

A client that is made takes what is in force. One that lives gets a new password without losing its connections. For
new certificates it has to be replaced, since librdkafka reads them only once: its owner does so when it has nothing
under way. Tokens are asked for by librdkafka itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaException


class Revision(NamedTuple):
    """What changes when the settings do.

    Attributes:
        password: grows with each new password.
        certificate: grows with each new set of certificate files.
    """

    password: int = 0
    certificate: int = 0


class ClientSettings(Mapping[str, Any]):
    """The settings as they are in force. They may hold passwords, and so are not shown."""

    def __init__(
        self,
        settings: Callable[[], Mapping[str, Any]] = dict,
        revision: Callable[[], Revision] = Revision,
    ) -> None:
        """Make them.

        Args:
            settings: as they are now; raises KafkaException while there are no credentials. In any thread.
            revision: see there. In any thread.
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
    """Whether a client is as its settings are; of one client after the other, in one thread."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Of settings that do not change, too."""
        self._revision = settings.revision if isinstance(settings, ClientSettings) else Revision
        self._settings = settings
        self._made = self._revision()

    def begin(self) -> None:
        """A client is made next."""
        self._made = self._revision()

    def outdated(self, client: Any) -> bool:
        """Give the client a new password if there is one; returns whether it has to be replaced."""
        now = self._revision()
        if now == self._made:
            return False
        if now.password != self._made.password:
            with suppress(KafkaException):  # then it is done at the next call
                settings = dict(self._settings)
                client.set_sasl_credentials(settings["sasl.username"], settings["sasl.password"])
                self._made = self._made._replace(password=now.password)
        return now.certificate != self._made.certificate
