"""Sets quotas with Terraform's provider for Kafka (Mongey/kafka), directly and through a gateway.

The provider is built from its Go module, and its resource `kafka_quota` is called as Terraform calls it. So Terraform
itself is not needed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from campaigns.matrix.clients import go_program
from campaigns.matrix.stage import gateway
from embedded_kafka.kafka import KafkaCluster

_VERSIONS: Final = ((), ("2.8.0",), ("3.6.0",))
"""The provider's kafka_version: its own default, and two explicit values."""

_READ: Final = "map[producer_byte_rate:1.048576e+06]"
_TIMEOUT_S: Final = 120


def main() -> int:
    """Run all versions; 1 when one fails."""
    program = go_program("terraform")
    good = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaCluster() as cluster,
        gateway(cluster, Path(folder)) as ours,
    ):
        for place, server in (("Kafka", cluster.bootstrap), ("the gateway", str(ours.bootstrap))):
            for version in _VERSIONS:
                done = subprocess.run(
                    [program, server, *version],
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
                held = done.returncode == 0 and done.stdout.strip() == _READ
                good += held
                print(
                    f"{place}, version {version[0] if version else 'not set'}: {done.stdout.strip()}{done.stderr}"
                )
    cases = 2 * len(_VERSIONS)
    print(f"**{good} of {cases}: a quota is created, read and deleted, directly and through the gateway**")
    return 0 if good == cases else 1


if __name__ == "__main__":
    sys.exit(main())
