#!/bin/bash
# Writes .env, which both Compose releases read: the stand-in images, and what this machine's engine cannot do.
# A .env that is there already is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -e .env ]; then
    echo ".env is there; docker/stand-ins.env has the stand-ins' names"
    exit 0
fi
set -a && . docker/stand-ins.env && set +a
cp docker/stand-ins.env .env.new
if ! docker run --rm --ulimit nice=20:20 "$PYTHON_IMAGE" true 2>/dev/null; then
    printf '# This engine may not raise limits (no CAP_SYS_RESOURCE); see docker-compose.nice.yml.\n' >>.env.new
    printf 'SERVING_NICE_LIMIT=0\nCOMPOSE_FILE=docker-compose.yml:docker-compose.nice.yml\n' >>.env.new
fi
mv .env.new .env
echo "wrote .env"
