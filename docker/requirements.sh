#!/bin/bash
# Writes requirements/*.txt: each package of an image with its version and the SHA-256 of its files, from pyproject.toml
# and constraints.txt. *-gpu.txt are those of docker-compose.gpu.yml; sbom.txt is the tool that lists what an image holds.
# PYTHON: a Python with pip, which brings uv.
set -euo pipefail
cd "$(dirname "$0")/.."
UV=0.13.9 CYCLONEDX=7.5.0
aside=$(mktemp -d)
trap 'rm -rf "$aside"' EXIT
"${PYTHON:-python3.11}" -m venv "$aside/venv"
"$aside/venv/bin/pip" install --quiet --disable-pip-version-check "uv==$UV"
mkdir -p requirements

compile() {  # NAME, then arguments of uv
    "$aside/venv/bin/uv" pip compile --quiet --generate-hashes --only-binary :all: --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --no-annotate --custom-compile-command 'make requirements' \
        --output-file "requirements/$1.txt" "${@:2}"
}

for service in ingest registry trainer serving; do
    compile "$service" --extra "$service" --constraints constraints.txt pyproject.toml
done
sed 's/"tensorflow-cpu"/"tensorflow[and-cuda]"/' pyproject.toml >"$aside/pyproject.toml"
sed 's/^tensorflow-cpu==/tensorflow==/' constraints.txt >"$aside/constraints.txt"
for service in trainer serving; do
    compile "$service-gpu" --extra "$service" --constraints "$aside/constraints.txt" "$aside/pyproject.toml"
done
echo "cyclonedx-bom==$CYCLONEDX" >"$aside/sbom.in"
compile sbom "$aside/sbom.in"
