"""Programs and files from the Go module proxy, at fixed versions, in the cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from pinned_jars import cache_dir

_HELM: Final = ("helm.sh/helm/v3/cmd/helm", "v3.18.4")
_KUBECONFORM: Final = ("github.com/yannh/kubeconform/cmd/kubeconform", "v0.7.0")


def helm() -> str:
    """The path of Helm; its first build takes minutes."""
    return _program(*_HELM)


def kubeconform() -> str:
    """The path of kubeconform, which checks manifests against JSON schemas."""
    return _program(*_KUBECONFORM)


def module(path: str, version: str) -> Path:
    """The folder with the sources of a module."""
    done = subprocess.run(
        [_go(), "mod", "download", "-json", f"{path}@{version}"], cwd="/", capture_output=True, check=False
    )
    found = json.loads(done.stdout)
    if "Dir" not in found:
        raise SystemExit(f"{path}@{version}: {found.get('Error', done.stderr.decode())}")
    return Path(found["Dir"])


def _program(package: str, version: str) -> str:
    folder = cache_dir() / "go" / version
    program = folder / package.rpartition("/")[2]
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"GOBIN": str(folder), "GOFLAGS": "-buildvcs=false"}
        command = ["nice", "-n", "19", _go(), "install", f"{package}@{version}"]
        subprocess.run(command, cwd="/", env=environment, check=True)
    return str(program)


def _go() -> str:
    found = shutil.which("go")
    if found is None:
        raise SystemExit("go is missing; install Go 1.24 or newer")
    return found
