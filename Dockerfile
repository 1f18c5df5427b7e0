# The operator, its command line and the wait-for-peers init container. Build it from the repository root:
#   docker build -t tfgpujob-operator .
# Built twice of the same base it has the same content: wheels carry one time, and bytecode none (release/images.py).
FROM python:3.11-slim-bookworm AS build
ENV SOURCE_DATE_EPOCH=1609459200 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off
COPY requirements/build.txt /requirements/
# Wheels only, so no compiler is ever needed, and each must have the hash that was locked.
RUN python -m venv /opt/build \
 && /opt/build/bin/python -m pip install --require-hashes --only-binary :all: -r /requirements/build.txt

FROM build AS dependencies
COPY operator/requirements.txt /requirements/operator.txt
RUN python -m venv --without-pip /opt/tfgpu \
 && /opt/build/bin/python -m pip --python /opt/tfgpu/bin/python install \
      --no-compile --require-hashes --only-binary :all: -r /requirements/operator.txt \
# Bytecode for all but the client library's typed models: the operator uses raw dicts and never imports them.
 && python -m compileall -q --invalidation-mode unchecked-hash -x '/kubernetes/.*/(api|models)/' /opt/tfgpu/lib

FROM build AS code
COPY operator /src/operator
COPY trainer_image/src/tfgpujob_contract /src/contract
RUN python -m venv --without-pip /opt/tfgpu \
 && /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /dist /src/operator /src/contract \
 && /opt/build/bin/python -m pip --python /opt/tfgpu/bin/python install --no-compile --no-deps --no-index /dist/*.whl \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/tfgpu/lib

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="TFGPUJob operator" \
      org.opencontainers.image.description="The operator of TFGPUJobs, its command line and the wait-for-peers init container" \
      org.opencontainers.image.licenses="Apache-2.0"
# Two layers: a new version of the code does not send the dependencies to every node again.
COPY --from=dependencies /opt/tfgpu /opt/tfgpu
COPY --from=code /opt/tfgpu/lib/python3.11/site-packages /opt/tfgpu/lib/python3.11/site-packages
COPY --from=code /opt/tfgpu/bin/*tfgpu* /opt/tfgpu/bin/
# USER answers who asks for the user's name (kopf does): no entry of /etc/passwd has this number, or any other given.
ENV PATH=/opt/tfgpu/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=tfgpu
# What a large answer took goes back to the system: a page of strangers' objects does not stay in memory.
ENV MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072
# A number, so that the kubelet can check runAsNonRoot.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["tfgpu-operator"]
