# One image per service: docker build --build-arg SERVICE=ingest --build-arg HTTP_PORT=8601 -t headrace/ingest .
# It holds its own service, common and protos, and the packages of requirements/SERVICE.txt, each with the SHA-256 that
# stands there (make requirements). /venv/sbom.cdx.json lists them, as CycloneDX.
# Classic and BuildKit builders both take it. With wheels in build/wheelhouse (docker/wheelhouse.sh) nothing is
# downloaded; without, pip asks its index.
ARG BASE=python:3.11-slim@sha256:90744cff8f32887f075c47d747a173ff333e9e98801667af93c357fa9f5e28ff

FROM ${BASE} AS packages
WORKDIR /build
RUN python3 -m venv /venv
# The pattern matches nothing where there is no wheelhouse, which COPY allows as long as another source is there.
COPY requirements build/wheelhous[e] ./
ARG SERVICE
# `-gpu` for NVIDIA devices: the same packages, and CUDA's.
ARG DEVICES=
# TensorFlow's C++ headers and pip are of no use in an image.
RUN wheels=$(ls | grep -q '\.whl$' && echo --no-index --find-links=. || true) \
 && install="pip install --quiet --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes $wheels" \
 && /venv/bin/$install -r "${SERVICE}${DEVICES}.txt" \
 && rm -rf /venv/lib/python3*/site-packages/tensorflow/include \
 && /venv/bin/pip uninstall --quiet --yes pip \
 && python3 -m venv /sbom && /sbom/bin/$install -r sbom.txt \
 && /sbom/bin/cyclonedx-py environment --output-reproducible --output-file /venv/sbom.cdx.json /venv/bin/python

# The registry's pages show the documents; no other image has them.
FROM ${BASE} AS documents
ARG SERVICE
WORKDIR /documents
COPY docs docs
RUN test "$SERVICE" = registry || rm -rf docs/*

FROM ${BASE} AS service
ARG SERVICE
ARG HTTP_PORT
RUN test -n "$SERVICE" && test -n "$HTTP_PORT" \
 && echo 'headrace:x:65532:65532:Headrace:/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'headrace:x:65532:' >> /etc/group \
 && mkdir -p -m 0700 /data /access /token /tokens/operator /tokens/registry /tokens/ingest /tokens/trainer /tokens/serving \
    /tokens/tensorboard /tls/registry /tls/ingest /tls/trainer /tls/serving /tls/tensorboard \
 && mkdir -m 0750 /tokens/prometheus /tls/proxy && chmod 0755 /tokens \
 && chown -R 65532:65532 /data /access /token /tokens /tls
COPY --from=packages /venv /venv
WORKDIR /app
COPY common common
COPY protos protos
COPY services/__init__.py services/
COPY services/${SERVICE} services/${SERVICE}
COPY --from=documents /documents/docs docs
COPY docker/probe probe
RUN /venv/bin/python -m compileall -q .
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp \
    SERVICE=${SERVICE} HTTP_PORT=${HTTP_PORT}
USER 65532:65532
EXPOSE ${HTTP_PORT}
HEALTHCHECK --interval=5s --timeout=8s --start-period=120s --retries=3 CMD ["bash", "/app/probe"]
ENTRYPOINT ["sh", "-c", "exec python -m services.$SERVICE"]
