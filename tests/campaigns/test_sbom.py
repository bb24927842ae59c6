"""The bill of materials names what the records in the image's files name."""

import json
from pathlib import Path

import pytest

from campaigns.deploy.sbom import bill

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Depends: libgcc-s1,
 libcrypt1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


@pytest.mark.slow
def test_debians_and_pythons_packages_are_components_of_sluice(tmp_path: Path) -> None:
    for name, text in {
        "etc/os-release": 'NAME="Debian"\nID=debian\nVERSION_ID="12"\n',
        "var/lib/dpkg/status": STATUS,
        "opt/sluice/lib/python3.11/site-packages/sluice-0.1.0.dist-info/METADATA": "Name: sluice\nVersion: 0.1.0\n",
        "opt/sluice/lib/python3.11/site-packages/x_y-2.dist-info/METADATA": "Name: X_y\nVersion: 2\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = json.loads(bill(tmp_path))
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/sluice@0.1.0"
    assert {each["purl"] for each in found["components"]} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
        "pkg:pypi/x-y@2",
    }
    (own,) = [each for each in found["dependencies"] if each["ref"] == "pkg:pypi/sluice@0.1.0"]
    assert len(own["dependsOn"]) == 2
