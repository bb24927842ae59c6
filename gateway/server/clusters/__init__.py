"""Several clusters: a parent process, and a group of processes for each cluster."""

from typing import Final

MEMBER: Final = "SLUICE_CLUSTER_PARENT"
"""The variable of the environment by which the process of a cluster knows its parent."""

IN_PLACE: Final = "SLUICE_CLUSTERS"
"""The variable in which a parent's program leaves its clusters for the next one in the same process."""

CALLER: Final = "X-Sluice-Caller"
"""The header in which the parent says who asks."""
