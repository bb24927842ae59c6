# The gateway alone, with a compiled core: no Kafka, no Java, no compiler, no root. Built and run by docker-compose.yml.
FROM python:3.13-slim-bookworm AS build
RUN apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/sluice
ENV PATH=/opt/sluice/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# The locked packages first: they change less often than the code.
COPY requirements.lock ./
RUN pip install --require-hashes --only-binary :all: -r requirements.lock
COPY requirements-compile.lock ./
RUN python -m venv --system-site-packages /opt/compile \
 && echo /opt/sluice/lib/python3.13/site-packages > /opt/compile/lib/python3.13/site-packages/sluice.pth \
 && /opt/compile/bin/pip install --require-hashes --only-binary :all: -r requirements-compile.lock
COPY pyproject.toml README.md LICENSE NOTICE setup.py ./
COPY gateway gateway
COPY embedded_kafka embedded_kafka
COPY pinned_jars pinned_jars
COPY protocol protocol
COPY quotas quotas
COPY config config
COPY pipeline pipeline
COPY sluice sluice
RUN SLUICE_COMPILED=1 /opt/compile/bin/pip wheel -w /wheels --no-deps --no-build-isolation .
# setuptools is in the lock to build the project, not to run it.
RUN pip install --no-deps /wheels/*.whl && sluice --version | grep -q "compiled core" && pip uninstall -q -y setuptools pip

FROM python:3.13-slim-bookworm
RUN groupadd --gid 10001 sluice \
 && useradd --uid 10001 --gid sluice --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin sluice \
 && install -d -o sluice -g sluice -m 0750 /var/lib/sluice
COPY --from=build /opt/sluice /opt/sluice
ENV PATH=/opt/sluice/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes' runAsNonRoot can tell.
USER 10001:10001
WORKDIR /var/lib/sluice
STOPSIGNAL SIGTERM
ENTRYPOINT ["sluice"]
CMD ["serve", "--config", "/etc/sluice/sluice.toml"]
