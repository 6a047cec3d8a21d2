#!/bin/bash
# operators.sh [kueue] [keda]: builds them from Go modules: images for the node, and the manifests that they ship for
# `kubectl kustomize`.
# Into ${KUBE_HOME:-$HOME/.kube-local}/operators; long the first time on 2 cores, nothing when they are there.
set -euo pipefail
home=${KUBE_HOME:-$HOME/.kube-local}/operators; mkdir -p "$home"
export GOTOOLCHAIN=local GOFLAGS=-mod=readonly CGO_ENABLED=0
# NAME MODULE "PACKAGE=BINARY..."
build() {
  local name=$1 module=$2 pair missing=""
  for pair in $3; do [ -x "$home/bin-$name/${pair#*=}" ] || missing="$missing $pair"; done
  if [ -n "$missing" ]; then
    # A copy, since a module with replace lines is built as the main module only.
    (cd "$home" && GOFLAGS=-mod=mod go mod download "$module")
    [ -d "$home/$name" ] || { cp -r "$(go env GOMODCACHE)/$module" "$home/$name.new"; chmod -R u+w "$home/$name.new"; mv "$home/$name.new" "$home/$name"; }
    for pair in $missing; do (cd "$home/$name" && go build -ldflags '-s -w' -o "$home/bin-$name/${pair#*=}" "${pair%%=*}"); done
  fi
  docker image inspect "local/$name:1" >/dev/null 2>&1 ||
    tar -C "$home/bin-$name" -c . | docker import -c 'USER 65532:65532' -c 'WORKDIR /' - "local/$name:1" >/dev/null
}
# In the order of their seconds. Kueue's dependencies hold JobSet's kinds; JobSet itself does not run.
for name in "$@"; do case $name in
  kueue) build kueue sigs.k8s.io/kueue@v0.17.0 "./cmd/kueue=manager" ;;
  keda) build keda github.com/kedacore/keda/v2@v2.18.1 "./cmd/operator=keda ./cmd/adapter=keda-adapter ./cmd/webhooks=keda-admission-webhooks" ;;
  *) echo "operators.sh knows kueue and keda, not $name" >&2; exit 2 ;;
esac; done
