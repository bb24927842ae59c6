# The gateway alone, with a compiled core: no Kafka, no Java, no compiler, no root. `make image` builds it.
#
# BASE is any Debian with Python 3.11 or newer. BUILD_BASE has the same Python, with venv and pip; where it has no gcc,
# apt-get installs one.
ARG BASE=python:3.13-slim-bookworm
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
RUN command -v gcc >/dev/null || { apt-get update -q \
 && apt-get install -y -q --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; }
RUN python3 -m venv /opt/sluice
ENV PATH=/opt/sluice/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# The locked packages first: they change less often than the code.
COPY requirements.lock ./
RUN pip install --require-hashes --only-binary :all: -r requirements.lock
COPY requirements-compile.lock ./
RUN python3 -m venv --system-site-packages /opt/compile \
 && echo /opt/sluice/lib/python3.*/site-packages > "$(echo /opt/compile/lib/python3.*/site-packages)/sluice.pth" \
 && /opt/compile/bin/pip install --require-hashes --only-binary :all: -r requirements-compile.lock
COPY pyproject.toml README.md LICENSE NOTICE setup.py ./
COPY gateway gateway
COPY embedded_kafka embedded_kafka
COPY pinned_jars pinned_jars
COPY protocol protocol
COPY quota_client quota_client
COPY quotas quotas
COPY config config
COPY pipeline pipeline
COPY sluice sluice
RUN SLUICE_COMPILED=1 /opt/compile/bin/pip wheel -w /wheels --no-deps --no-build-isolation .
# setuptools is in the lock to build the project, not to run it.
RUN pip install --no-deps /wheels/*.whl && sluice --version | grep -q "compiled core" \
 && find /opt/sluice/lib/python3.*/site-packages/sluice -name "*.so" -exec strip --strip-unneeded {} + \
 && pip uninstall -q -y setuptools pip

FROM ${BASE}
ARG VERSION=0.2.0
ARG REVISION=unknown
ARG BASE
LABEL org.opencontainers.image.title="Sluice" \
      org.opencontainers.image.description="A quota gateway for Apache Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
# Not by groupadd and useradd: a small base lacks them. No program runs as its owner, such as su as root.
RUN echo "sluice:x:10001:" >> /etc/group \
 && echo "sluice:x:10001:10001:Sluice:/nonexistent:/usr/sbin/nologin" >> /etc/passwd \
 && install -d -o 10001 -g 10001 -m 0750 /var/lib/sluice \
 && find /usr -xdev -type f -perm /6000 -exec chmod a-s {} +
COPY --from=build /opt/sluice /opt/sluice
ENV PATH=/opt/sluice/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes' runAsNonRoot can tell.
USER 10001:10001
WORKDIR /var/lib/sluice
STOPSIGNAL SIGTERM
# For Docker, with the default port. Kubernetes has its own probes.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 \
 CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9644/healthz', timeout=3)"]
ENTRYPOINT ["sluice"]
CMD ["serve", "--config", "/etc/sluice/sluice.toml"]
