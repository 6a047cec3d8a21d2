#!/bin/bash
# Builds Kubernetes, CoreDNS and Helm from Go modules, and installs Debian's etcd, containerd and CNI plugins.
# Into ${KUBE_HOME:-$HOME/.kube-local}/bin; about 5 minutes on 2 cores the first time, nothing when they are there.
set -euo pipefail
home=${KUBE_HOME:-$HOME/.kube-local}; mkdir -p "$home/bin" "$home/src"
version=1.34.4 staging=v0.34.4
tools="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl"
export GOFLAGS=-mod=mod GOTOOLCHAIN=local GOBIN=$home/bin

missing=""; for package in etcd-server containerd runc containernetworking-plugins iptables iproute2; do
  dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"; done
if [ -n "$missing" ]; then
  apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
fi

[ -x "$home/bin/helm" ] || go install helm.sh/helm/v3/cmd/helm@v3.19.5
[ -x "$home/bin/coredns" ] || go install github.com/coredns/coredns@v1.14.3

# KEDA's kinds, for the API server to judge the chart's ScaledObjects; KEDA itself: operators.sh.
keda=github.com/kedacore/keda/v2@v2.18.1
if [ ! -e "$home/crds/scaledobjects.yaml" ]; then
  mkdir -p "$home/crds"; go mod download "$keda"
  cp "$(go env GOMODCACHE)/$keda/config/crd/bases/keda.sh_scaledobjects.yaml" "$home/crds/scaledobjects.yaml"
fi

cd "$home/src"
todo=""; for tool in $tools; do [ -x "$home/bin/$tool" ] || todo="$todo $tool"; done
[ -z "$todo" ] && exit 0
# `go install k8s.io/kubernetes/…@v` refuses because of its replace lines: a module of ours requires it and replaces
# the staging modules by their published versions.
printf 'module local\n\ngo 1.24\n\nrequire k8s.io/kubernetes v%s\n' "$version" >go.mod
go mod download "k8s.io/kubernetes@v$version"
source=$(go list -m -f '{{.Dir}}' "k8s.io/kubernetes@v$version")
grep -oE '^\s+k8s.io/[a-z-]+ => ./staging' "$source/go.mod" | awk -v s="$staging" '{print "replace " $1 " => " $1 " " s}' >>go.mod
{ printf '//go:build tools\n\npackage tools\n\nimport (\n'; for tool in $tools; do echo "  _ \"k8s.io/kubernetes/cmd/$tool\""; done; echo ')'; } >tools.go
go mod tidy -e >/dev/null 2>&1
set_version="-X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34"
for tool in $todo; do go build -ldflags "-s -w $set_version" -o "$home/bin/$tool" "k8s.io/kubernetes/cmd/$tool"; done
ls "$home/bin"
