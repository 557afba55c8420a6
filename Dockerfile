# One image for every role: `docker run IMAGE` starts the whole product; `docker run IMAGE control` and `… proxy` start
# one plane each.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc make && rm -rf /var/lib/apt/lists/*
WORKDIR /tollgate
COPY Makefile pyproject.toml requirements.lock README.md LICENSE ./
COPY policy policy
COPY proxy proxy
COPY control control
COPY launcher launcher
COPY commands commands
COPY trainer trainer
COPY runtime runtime
RUN make install

FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 tollgate && install -d -o tollgate -m 0700 /data
COPY --from=build /tollgate /tollgate
USER tollgate
WORKDIR /tollgate
ENV PATH=/tollgate/.venv/bin:$PATH TOLLGATE_DATA=/data TOLLGATE_REDIS_SERVER=/usr/bin/redis-server
VOLUME /data
EXPOSE 8080 8081
ENTRYPOINT ["tollgate"]
CMD ["up", "--host", "0.0.0.0"]
