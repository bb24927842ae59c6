"""``python -m campaigns.deploy.sbom ROOT FILE``: the bill of materials of the image, in CycloneDX 1.6.

The components are Debian's and Python's packages, as named in the package records of the image.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from packageurl import PackageURL

_PYTHON = "opt/sluice/lib/python3*/site-packages"


def bill(root: Path) -> str:
    """The bill of materials as valid JSON.

    Args:
        root: the image's files.
    """
    bom = Bom()
    components = [*_debian(root), *_python(root)]
    (own,) = [each for each in components if each.name == "sluice"]
    others = [each for each in components if each is not own]
    own.type = ComponentType.APPLICATION
    bom.metadata.component = own
    for each in others:
        bom.components.add(each)
    bom.register_dependency(own, others)
    from cyclonedx.validation.json import JsonStrictValidator  # takes 2 s of CPU, so imported only here

    text = JsonV1Dot6(bom).output_as_string(indent=1)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert fault is None, fault
    return text


def _debian(root: Path) -> Iterator[Component]:
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', (root / "etc/os-release").read_text(), re.MULTILINE))
    distribution = f"{release['ID']}-{release['VERSION_ID']}"
    for paragraph in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        found = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.MULTILINE))
        if found.get("Status") == "install ok installed":
            name, version = found["Package"], found["Version"]
            qualifiers = {"arch": found["Architecture"], "distro": distribution}
            yield _component(PackageURL("deb", release["ID"], name, version, qualifiers))


def _python(root: Path) -> Iterator[Component]:
    (packages,) = root.glob(_PYTHON)
    for each in distributions(path=[str(packages)]):
        yield _component(PackageURL("pypi", None, re.sub(r"[-_.]+", "-", each.name).lower(), each.version))


def _component(url: PackageURL) -> Component:
    return Component(
        type=ComponentType.LIBRARY, name=url.name, version=url.version, purl=url, bom_ref=url.to_string()
    )


def main() -> int:
    """Write it."""
    root, file = Path(sys.argv[1]), Path(sys.argv[2])
    text = bill(root)
    file.write_text(text)
    print(f"{file}: {text.count('bom-ref')} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
