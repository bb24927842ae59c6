"""Builds the package. With SLUICE_COMPILED=1 what sees every frame or connection is compiled too, by mypyc.

All packages are placed inside one, `sluice` (docs/decisions/0029-install.md). The sources are the same either way. A
compiled package has them beside what was made of them, and a list of what they were when they were compiled
(`gateway/runtime/compiled_core.py`, docs/decisions/0024-compiled-core.md).
"""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

INSIDE = (
    "config",
    "embedded_kafka",
    "gateway",
    "pinned_jars",
    "pipeline",
    "protocol",
    "quota_client",
    "quotas",
)
CORE = (
    "gateway/handlers/api_versions.py",
    "gateway/handlers/fetch.py",
    "gateway/handlers/node_endpoints.py",
    "gateway/handlers/produce.py",
    "gateway/handlers/topic_use.py",
    "gateway/net/accepted_socket.py",
    "gateway/net/acceptor.py",
    "gateway/net/back_pressure.py",
    "gateway/net/batch_scheduler.py",
    "gateway/net/channel.py",
    "gateway/net/listener.py",
    "gateway/net/long_work.py",
    "gateway/net/stalled_write.py",
    "gateway/runtime/clock.py",
    "gateway/runtime/eager.py",
    "gateway/session/announced.py",
    "gateway/session/api_limits.py",
    "gateway/session/chunk_relay.py",
    "gateway/session/client_quotas.py",
    "gateway/session/memory_budget.py",
    "gateway/session/mute.py",
    "gateway/session/parser.py",
    "gateway/session/parts.py",
    "gateway/session/request_meter.py",
    "gateway/session/response_queue.py",
    "gateway/session/routes.py",
    "gateway/session/session.py",
    "gateway/session/settings.py",
    "gateway/session/throttle_state.py",
    "gateway/tls/records.py",
    "gateway/tls/transport.py",
    "gateway/upstream/connector.py",
    "gateway/upstream/keepalive.py",
    "gateway/upstream/resolver.py",
    "gateway/usage/row.py",
    "protocol/api_keys.py",
    "protocol/api_versions.py",
    "protocol/fetch.py",
    "protocol/headers.py",
    "protocol/node_endpoints.py",
    "protocol/plain_topics.py",
    "protocol/produce.py",
    "protocol/topic_sizes.py",
    "quotas/bound_queue.py",
    "quotas/connections.py",
    "quotas/entities.py",
    "quotas/ip_limits.py",
    "quotas/limits.py",
    "quotas/rate.py",
    "quotas/rate_quotas.py",
    "quotas/resolution.py",
    "quotas/set_aside.py",
    "quotas/throttle_stats.py",
    "quotas/trackers.py",
)
LIST = "gateway/runtime/compiled_core.json"

# mypyc's runtime takes the end of a slice of bytes less its start for its length, also where that is below 0.
SLICE_LENGTH = "slice_len = endn - startn;"
MENDED_LENGTH = "slice_len = endn < startn ? 0 : endn - startn;"


class BuildWithList(build_py):
    """Puts the list of compiled sources into the package."""

    def run(self) -> None:
        """See `build_py`."""
        super().run()
        digests = {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in CORE}
        (Path(self.build_lib) / "sluice" / LIST).write_text(json.dumps(digests, indent=1) + "\n")


class FreshWheel(bdist_wheel):
    """Takes along nothing that an earlier build left in the build folder."""

    def run(self) -> None:
        """See `bdist_wheel`."""
        if not self.distribution.have_run.get("build"):
            shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()


found = find_packages(include=[pattern for name in INSIDE for pattern in (name, f"{name}.*")])
placed = {
    "packages": ["sluice", *(f"sluice.{name}" for name in found)],
    "package_dir": {f"sluice.{name}": name for name in INSIDE},
}


def mended_runtime(runtime: Path, folder: Path) -> str:
    """A folder with the file of mypyc's runtime that is mended, to be looked into before the others' folder."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "bytes_ops.c"
    (folder / name).write_text((runtime / name).read_text().replace(SLICE_LENGTH, MENDED_LENGTH))
    return str(folder)


# Not for the metadata, for which a build runs this file too.
if os.environ.get("SLUICE_COMPILED") == "1" and {"build", "bdist_wheel"} & set(sys.argv):
    # Here, because a build without it needs no mypyc.
    from mypyc.build import include_dir, mypycify

    level = os.environ.get("SLUICE_OPT_LEVEL", "3")  # of gcc; the tests take 0, which is ready sooner
    # A cache of its own: of two processes that open a new cache of mypy at the same moment, one fails.
    cache = os.path.join("build", "mypy-cache")
    libraries = mypycify(["--cache-dir", cache, *CORE], opt_level=level, group_name="sluice_core")
    for library in libraries:
        library.name = f"sluice.{library.name}"
        library.include_dirs.insert(0, mended_runtime(Path(include_dir()), Path("build", "mypyc")))
        # With -Wall, one of the flags of Python, gcc takes five times as long for the half a million generated lines.
        library.extra_compile_args.append("-Wno-all")
    commands = {"build_py": BuildWithList, "bdist_wheel": FreshWheel}
    setup(**placed, ext_modules=libraries, cmdclass=commands)
else:
    setup(**placed, cmdclass={"bdist_wheel": FreshWheel})
