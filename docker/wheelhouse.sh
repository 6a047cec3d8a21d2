#!/bin/bash
# Fills build/wheelhouse with every wheel that the four images need, in the pinned versions, so that building an image
# downloads nothing. TENSORFLOW='tensorflow[and-cuda]' for the images of docker-compose.gpu.yml.
# PYTHON: a Python 3.11 with pip. (redis wants async-timeout on Debian's 3.11.2, but not on the 3.11 that runs this.)
set -euo pipefail
cd "$(dirname "$0")/.."
tensorflow=${TENSORFLOW:-tensorflow-cpu}
folder=build/wheelhouse
mark="$tensorflow $(cat pyproject.toml constraints.txt docker/wheelhouse.sh | sha256sum | cut -c1-64)"
if [ "$(cat $folder.filled 2>/dev/null)" = "$mark" ]; then
    exit 0
fi
rm -rf $folder
mkdir -p $folder
aside=$(mktemp -d)
trap 'rm -rf "$aside"' EXIT
sed "s/\"tensorflow-cpu\"/\"$tensorflow\"/" pyproject.toml >"$aside/pyproject.toml"
sed "s/^tensorflow-cpu==/${tensorflow%%[*}==/" constraints.txt >"$aside/constraints.txt"
touch "$aside/README.md" "$aside/LICENSE"
"${PYTHON:-python3.11}" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --dest $folder \
    -c "$aside/constraints.txt" "$aside[ingest,registry,trainer,serving]" 'setuptools>=75' async-timeout==5.0.1
echo "$mark" >$folder.filled
echo "wheelhouse: $(ls $folder | wc -l) wheels, $(du -sh $folder | cut -f1)"
