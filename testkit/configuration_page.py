"""docs/reference/configuration.md, made from the config package: `python -m testkit.configuration_page` writes it.

Keys, values and defaults are those of the models. The meaning of a key is its line in the model's docstring.
`gateway.server.reload` says whether a reload applies a changed key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from textwrap import fill
from types import NoneType
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from config import Config, HostPort
from config.clusters import NAME, SharedSettings
from config.descriptions import meanings, summary
from config.faults import allowed
from config.section_base import Section
from gateway.server.reload import LIVE, LIVE_EXCEPT, LIVE_OF_LISTENERS

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.md"

_HEAD: Final = """# Configuration

The configuration is one TOML file. Sluice reads and checks all of it before it opens a socket. This
page is generated from the code by `python -m testkit.configuration_page`.

* Examples with every key: [full.toml](../../config/examples/full.toml) and
  [secure.toml](../../config/examples/secure.toml). The shortest file that works:
  [minimal.toml](../../config/examples/minimal.toml).
* Values keep their TOML type: `"9092"` is not a number and `1` is not true. Unknown keys are
  errors.
* Units are in the names: `_ms` is milliseconds, `_seconds` seconds, `_hours` hours, `_bytes` bytes,
  `_bytes_per_s` and `_byte_rate` bytes per second, `_percentage` percent of one core.
* Sizes, byte rates and the other quotas may also be a string with a unit: `"10MB"`, `"10MiB"`,
  `"250%"`, `"5/s"`. kB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB powers of 1024.
  Keys that end in `_ms` or `_hours` take numbers alone, and so do most that end in `_seconds`.
* `[section]` is one table. `[[section]]` is a list of tables.
* Several clusters: `[[clusters]]`, [below](#clusters). A file has either that or `[upstream]`.
* `${NAME}` in a string is the value of that variable of the environment, so that several gateways
  can share one file: `member = "${POD_NAME}"`. A missing variable is an error. `$${` is the text
  `${`, and any other dollar is a dollar. Only strings have variables, and a value is not searched
  for more of them. Do not put a secret into one, except `token` of `[[admin.keys]]`: error messages
  show all other values.
* `${file:/PATH}` in a string is the text of that file, without the line end behind it:
  `username = "${file:/run/secrets/user}"`. A reload reads the file again. The text is one line of
  at most 4,096 bytes. Error messages and `check-config` hide it. Names of listeners, users and
  hosts are in logs and metrics, wherever they come from.
* Such files are below `/run/secrets`, `/etc/sluice`, systemd's `$CREDENTIALS_DIRECTORY`, or a
  directory in the variable `SLUICE_SECRET_DIRS` of the environment (a list with colons). Links must
  not lead out of them.
* Editors use the [JSON Schema](configuration.schema.json) of the file
  ([how to](../how-to/change-the-configuration.md#1-start-from-a-file)).
* `sluice check-config FILE` checks a file without starting anything: see
  [the command line](cli.md).

The column **Reload** says what happens to a changed key when the running gateway reads the file
again (`sluice reload`). *Yes*: the change is in force at once. *Restart*: the change waits for the
next start, is reported, and does not block the others. Changes in `[limits]` apply to new
connections; those of `write_timeout_ms` and `min_write_bytes_per_s` also to open ones. Certificate
files are read again at every reload, whatever is in this file.
"""

_CLUSTERS: Final = """## `[[clusters]]`

Several Kafka clusters behind one gateway, each with processes of its own
([how to](../how-to/several-clusters.md), [example](../../config/examples/clusters.toml)).
{shared} stand at the top of the file and are for
all clusters. A cluster has all other sections of this page, such as `[clusters.upstream]` and
`[[clusters.listeners]]`, and one key:

| Key | Value | Default | Reload | Meaning |
|---|---|---|---|---|
| `name` | string, `^{pattern}$` | **required** | yes | {meaning} |

A reload starts a new cluster. One that is gone from the file serves on until `sluice upgrade`.

Two clusters must not share ports, `quota_store.data_dir`, `usage.directory` or `usage.gateway_id`.
Two of these have other defaults here: `quota_store.data_dir` is `sluice-data/NAME`, and
`usage.gateway_id` is the host's name, a dot and the cluster's name.
"""

_SPAN: Final = re.compile(r"a whole number in (-?\d+)\.\.(\d+)")
_TEXT: Final = re.compile(r"a string(?: that matches (\S+)| of at least one character)?")
_ADDRESSES: Final = {
    "ip": "IP address or block",
    "trusted": "array of IP addresses and blocks",
    "bootstrap": "array of `host:port`",
}
"""Keys whose texts have a form that their type does not show."""


def page() -> str:
    """docs/reference/configuration.md as it should be."""
    parts = [_HEAD]
    described: dict[type[BaseModel], str] = {}
    for name, field in Config.model_fields.items():
        (model,) = _models(field.annotation)
        title = f"[[{name}]]" if get_origin(field.annotation) is tuple else f"[{name}]"
        parts += _section(name, title, model, described)
    meaning = "Unique name. Metrics, logs, paths of the admin port and `--cluster` use it."
    parts.append(_CLUSTERS.format(pattern=NAME.pattern, meaning=meaning, shared=_listed(SharedSettings)))
    return "\n".join(parts)


def _listed(model: type[BaseModel]) -> str:
    *most, last = (f"`[{name}]`" for name in model.model_fields)
    return f"{', '.join(most)} and {last}"


def _models(kind: Any) -> list[type[BaseModel]]:
    """The sections in the type of a key."""
    return [
        each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, BaseModel)
    ]


def _section(
    path: str, title: str, model: type[BaseModel], described: dict[type[BaseModel], str]
) -> Iterator[str]:
    paragraphs = [fill(each, 100, break_on_hyphens=False) for each in summary(model).split("\n\n")]
    yield "\n\n".join([f"## `{title}`", *paragraphs]) + "\n"
    extended = model.__mro__[1].model_fields if model.__mro__[1] is not Section else {}
    if extended:
        yield "It has all keys of `[upstream]`, and one more:\n"
    yield "| Key | Value | Default | Reload | Meaning |\n|---|---|---|---|---|"
    texts = meanings(model)
    tables = []
    for key, field in model.model_fields.items():
        if key in extended:
            continue
        below = f"{path}.{key}"
        found = _models(field.annotation)
        many = get_origin(field.annotation) is tuple
        new = [each for each in found if each not in described]
        described.update(dict.fromkeys(new, below))
        tables += [(below, f"[[{below}]]" if many else f"[{below}]", each) for each in new]
        place = "".join(described[each] for each in found)
        where = "below" if new else f"as `[{place}]`"
        cells = (
            f"`{key}`",
            f"table{'s' * many}, [{where}](#{place.replace('.', '')})"
            if found
            else _values(model, key, field.annotation),
            _default(field),
            "yes" if is_live(path, key) else "restart",
            texts[key],
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    for below, title, each in tables:
        yield from _section(below, title, each, described)


def _values(model: type[BaseModel], key: str, kind: Any) -> str:
    if key in _ADDRESSES:
        return _ADDRESSES[key]
    if NoneType in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        return "array of strings"
    if get_origin(kind) is Mapping:
        return "table: IP address = number"
    if kind is HostPort:
        return "`host:port`"
    text = allowed(model, (key,)).removeprefix("one of ")
    text = _SPAN.sub(lambda found: f"number, {int(found[1]):,} to {int(found[2]):,}", text)
    return _TEXT.sub(lambda found: f"string, `{found[1]}`" if found[1] else "string", text)


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "`{}`" if field.default_factory is dict else "see meaning"
    if field.default is PydanticUndefined:
        return "**required**"
    if field.default is None:
        return "not set"
    value = field.default.value if isinstance(field.default, Enum) else field.default
    return f"`{json.dumps(str(value) if isinstance(value, HostPort) else value)}`"


def is_live(path: str, key: str) -> bool:
    """Whether a reload applies a changed key.

    Args:
        path: the path of its table.
        key: its name in the table.
    """
    if path == "listeners":
        return key in LIVE_OF_LISTENERS
    return path.partition(".")[0] in LIVE and LIVE_EXCEPT.isdisjoint((path, f"{path}.{key}"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
