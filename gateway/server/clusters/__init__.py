"""Several clusters: a parent process, and a group of processes for each cluster."""

from typing import Final

MEMBER: Final = "SLUICE_CLUSTER_PARENT"
"""The environment variable by which a cluster's process knows its parent."""

IN_PLACE: Final = "SLUICE_CLUSTERS"
"""The environment variable by which a parent passes its clusters to its next program in the same process."""

CALLER: Final = "X-Sluice-Caller"
"""The header in which the parent names the caller."""
