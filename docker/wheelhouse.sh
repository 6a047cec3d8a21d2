#!/bin/bash
# Fills build/wheelhouse with every wheel that the four images need, in the versions and with the hashes of
# requirements/*.txt, so that building an image downloads nothing. DEVICES=-gpu for the images of docker-compose.gpu.yml.
# PYTHON: a Python 3.11 with pip.
set -euo pipefail
cd "$(dirname "$0")/.."
files=(ingest registry "trainer${DEVICES:-}" "serving${DEVICES:-}" sbom)
folder=build/wheelhouse
mark=$(printf 'requirements/%s.txt\n' "${files[@]}" | xargs cat docker/wheelhouse.sh | sha256sum | cut -c1-64)
if [ "$(cat $folder.filled 2>/dev/null)" = "$mark" ]; then
    exit 0
fi
rm -rf $folder
mkdir -p $folder
for file in "${files[@]}"; do
    "${PYTHON:-python3.11}" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --require-hashes \
        --no-deps --dest $folder -r "requirements/$file.txt"
done
echo "$mark" >$folder.filled
echo "wheelhouse: $(ls $folder | wc -l) wheels, $(du -sh $folder | cut -f1)"
