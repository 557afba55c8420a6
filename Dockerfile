# One image for every role: `docker run IMAGE` starts the whole product; `docker run IMAGE control` and `… proxy` start
# one plane each. It runs as user 10001 and writes to /data and /tmp alone, so the root file system may be read-only.
# Base images are named by tag; `make release` builds with the digests that the Docker daemon reports
# (docs/deploying.md#a-release).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
COPY deploy/release/requirements.lock deploy/release/requirements.lock
RUN python -m venv /build/tools \
    && /build/tools/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary :all: --require-hashes -r deploy/release/requirements.lock
COPY requirements.lock ./
RUN python -m venv --without-pip /opt/tollgate \
    && /build/tools/bin/pip --python /opt/tollgate/bin/python install --no-cache-dir --disable-pip-version-check --only-binary :all: --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE CHANGELOG.md MANIFEST.in ./
COPY policy policy
COPY proxy proxy
COPY control control
COPY launcher launcher
COPY commands commands
COPY trainer trainer
COPY runtime runtime
COPY deploy/release deploy/release
ARG SOURCE_DATE_EPOCH=0
RUN /build/tools/bin/python -m deploy.release.distributions dist \
    && /build/tools/bin/pip --python /opt/tollgate/bin/python install --no-cache-dir --disable-pip-version-check --no-index --no-deps dist/tollgate-*.whl \
    && /opt/tollgate/bin/python -m deploy.release.bill_of_materials requirements.lock > /opt/tollgate/tollgate.cdx.json

FROM ${PYTHON_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin tollgate \
    && install -d -o tollgate -g tollgate -m 0700 /data
COPY --from=build /opt/tollgate /opt/tollgate
USER 10001
WORKDIR /data
# A container's /dev/shm ends with it: what a journal had there alone would be lost (docs/decisions/0071).
ENV PATH=/opt/tollgate/bin:$PATH TOLLGATE_DATA=/data TOLLGATE_REDIS_SERVER=/usr/bin/redis-server TOLLGATE_JOURNAL_MEMORY_DIR=off
VOLUME /data
EXPOSE 8080 8081 8082
ENTRYPOINT ["tollgate"]
CMD ["up", "--host", "0.0.0.0"]
