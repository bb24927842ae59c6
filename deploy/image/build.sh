#!/bin/bash
# Builds the image, and leaves in build/image:
#   sluice.tar    the image, for `docker load` or `podman load`
#   config.json   its configuration, as the engine shows it
#   root/         its files
#
# A Docker engine builds it from Dockerfile's own base. Without one, buildah (as root) builds it from two bases that
# mmdebstrap makes of Debian's packages alone, from the sources of this machine or of the file DEBIAN_SOURCES. BASE and
# BUILD_BASE name other bases.
set -euo pipefail
cd "$(dirname "$0")/../.."
output=$PWD/build/image
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
name=sluice:$version
arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$(git describe --always --dirty 2>/dev/null || echo unknown)")

needed() { # package
  command -v "$1" >/dev/null || { echo "install with: apt-get install $1" >&2; exit 1; }
}

buildah_here() { # Keeps its images in build/image. vfs and chroot need nothing of the kernel that a container lacks.
  buildah --root "$output/storage" --runroot "$output/run" --storage-driver vfs "$@"
}

# Debian's packages without documentation, and without perl, which only usrmerge wants.
debian() { # name variant packages
  mmdebstrap --quiet --mode=root --variant="$2" --include="$3" --aptopt='APT::Install-Recommends "false"' \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --setup-hook='mkdir -p "$1/etc/apt/preferences.d"' \
    --setup-hook='printf "Package: usrmerge\nPin: release *\nPin-Priority: -1\n" >"$1/etc/apt/preferences.d/merged"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$output/$1.tar" "${DEBIAN_SOURCES:-/etc/apt/sources.list.d/debian.sources}" >&2
  container=$(buildah_here from scratch)
  buildah_here add -q "$container" "$output/$1.tar" / >/dev/null
  buildah_here commit -q "$container" "localhost/$1" >/dev/null
  buildah_here rm "$container" >/dev/null
  rm "$output/$1.tar"
  echo "localhost/$1"
}

rm -rf "$output"
mkdir -p "$output/root"
if docker info >/dev/null 2>&1; then
  for base in BASE BUILD_BASE; do
    [[ -z ${!base:-} ]] || arguments+=(--build-arg "$base=${!base}")
  done
  docker build -q "${arguments[@]}" -t "$name" . >&2
  docker image inspect --format '{{json .Config}}' "$name" >"$output/config.json"
  docker save -o "$output/sluice.tar" "$name"
  container=$(docker create "$name")
  docker export "$container" | tar -x -C "$output/root"
  docker rm "$container" >/dev/null
else
  needed buildah
  if [[ -z ${BASE:-} ]]; then
    needed mmdebstrap
    BASE=$(debian sluice-base essential python3,ca-certificates,usr-is-merged)
    BUILD_BASE=$(debian sluice-build-base minbase python3-venv,python3-dev,gcc,libc6-dev,ca-certificates,usr-is-merged)
  fi
  # Python's packages come by this machine's settings and authorities.
  for file in /etc/ssl/certs /etc/pip.conf; do
    [[ ! -e $file ]] || arguments+=(--volume "$file:$file:ro")
  done
  # Docker's format: OCI's has no health check.
  buildah_here bud -q --isolation chroot --format docker --layers=false "${arguments[@]}" \
    --build-arg "BASE=$BASE" --build-arg "BUILD_BASE=${BUILD_BASE:-$BASE}" -t "$name" . >&2
  buildah_here inspect --type image "$name" |
    python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["Docker"]["config"]))' >"$output/config.json"
  buildah_here push -q "$name" "docker-archive:$output/sluice.tar:$name" >&2
  container=$(buildah_here from "$name")
  cp -a "$(buildah_here mount "$container")/." "$output/root/"
  buildah_here rm "$container" >/dev/null
  rm -rf "$output/storage" "$output/run"
fi
echo "$name: $(du -sm --apparent-size "$output/root" | cut -f1) MB, $(gzip -1 <"$output/sluice.tar" | wc -c | awk '{print int($1 / 1e6)}') MB compressed"
