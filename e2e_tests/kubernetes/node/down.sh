#!/bin/bash
# Ends what up.sh started, by process id, with its pods, mounts and state.
run=${KUBE_RUN:-/tmp/kube-local}; home=${KUBE_HOME:-$HOME/.kube-local}
[ -e "$run/pids" ] || exit 0
timeout 60 "$home/bin/kubectl" --kubeconfig "$run/kubeconfig" delete deployments,statefulsets,daemonsets,jobs,pods --all --all-namespaces --grace-period=1 >/dev/null 2>&1
tac "$run/pids" | while read -r pid name; do [ "$name" = containerd ] || kill "$pid" 2>/dev/null; done; sleep 2
while read -r pid name; do [ "$name" = containerd ] || kill -9 "$pid" 2>/dev/null; done <"$run/pids"
for shim in $(pgrep -f "containerd-shim.*$run/containerd/socket"); do kill -9 "$shim" 2>/dev/null; done
awk '$2=="containerd"{print $1}' "$run/pids" | xargs -r kill -9 2>/dev/null; sleep 1
mount | awk -v r="$run/" 'index($3,r)==1{print $3}' | tac | xargs -r -n1 umount -l 2>/dev/null
for chain in OUTPUT FORWARD; do iptables -D $chain -d 10.0.0.0/24 -j REJECT 2>/dev/null; done
for way in -i -o; do iptables -D FORWARD $way kube0 -j ACCEPT 2>/dev/null; done
ip link delete kdns 2>/dev/null; ip link delete kube0 2>/dev/null
rm -rf "$run"
