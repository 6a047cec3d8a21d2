#!/bin/bash
# Starts one real Kubernetes node on this machine: etcd, API server, controller manager, scheduler, kubelet on containerd,
# kube-proxy, CoreDNS. Prints the kubeconfig's path. State in ${KUBE_RUN:-/tmp/kube-local}; down.sh ends it all.
# Root, amd64, cgroup v1; pods on 10.88.7.0/24, services on 10.0.0.0/24, DNS at 10.88.255.53, API at 127.0.0.1:16443. The
# bridge enforces no NetworkPolicy. Not for a machine with a cluster: ports, the bridge and iptables' KUBE chains are shared.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); home=${KUBE_HOME:-$HOME/.kube-local}; run=${KUBE_RUN:-/tmp/kube-local}
"$here/build.sh" >&2
[ -e "$run/pids" ] && { echo "already up, or not taken down: $run" >&2; exit 1; }
mkdir -p "$run"/{cni,logs,containerd}; cd "$run"; : >pids
begin() { name=$1; shift; setsid nohup "$@" >"logs/$name" 2>&1 & echo "$! $name" >>pids; }
wait_for() { what=$1; shift; for _ in $(seq 120); do "$@" >/dev/null 2>&1 && return; sleep 0.5; done; echo "$what did not come up: $run/logs" >&2; exit 1; }

dns=10.88.255.53 pods=10.88.7.0/24 services=10.0.0.0/24 api=https://127.0.0.1:16443
ip link show kdns >/dev/null 2>&1 || ip link add kdns type bridge; ip addr replace $dns/32 dev kdns; ip link set kdns up
sysctl -qw net.ipv4.ip_forward=1
openssl genrsa -out sa.key 2048 2>/dev/null; openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
# For API servers behind this one, which KEDA's metrics are: who asks them, in this server's name.
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=front-proxy -keyout front.key -out front.pem 2>/dev/null
token=$(openssl rand -hex 16); (umask 077; echo "$token,admin,1,system:masters" >tokens.csv)
address=$(ip -4 -o addr show scope global | awk '$2!="kdns"{split($4,a,"/"); print a[1]; exit}')
umask 077; cat >kubeconfig <<Y
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "$api", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: local, context: {cluster: local, user: admin}}]
current-context: local
Y
umask 022
cat >cni/10-local.conflist <<Y
{"cniVersion":"0.4.0","name":"local","plugins":[{"type":"bridge","bridge":"kube0","isGateway":true,"ipMasq":false,"hairpinMode":true,
"ipam":{"type":"host-local","dataDir":"$run/ipam","ranges":[[{"subnet":"$pods"}]],"routes":[{"dst":"0.0.0.0/0"}]}},{"type":"portmap","capabilities":{"portMappings":true}}]}
Y
cat >containerd.toml <<Y
version = 2
root = "$run/containerd/root"
state = "$run/containerd/state"
[grpc]
  address = "$run/containerd/socket"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$run/cni"
Y
cat >kubelet.yaml <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
port: 16250
readOnlyPort: 0
healthzPort: 16248
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failSwapOn: false
enforceNodeAllocatable: []
clusterDomain: cluster.local
clusterDNS: [$dns]
containerRuntimeEndpoint: unix://$run/containerd/socket
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
Y
cat >Corefile <<Y
cluster.local in-addr.arpa {
  bind $dns
  errors
  kubernetes cluster.local in-addr.arpa { 
    kubeconfig $run/kubeconfig local
  }
}
. {
  bind $dns
  errors
  forward . /etc/resolv.conf
}
Y
begin etcd etcd --data-dir "$run/etcd" --listen-client-urls http://127.0.0.1:23790 --advertise-client-urls http://127.0.0.1:23790 --listen-peer-urls http://127.0.0.1:23800 --initial-advertise-peer-urls http://127.0.0.1:23800 --initial-cluster default=http://127.0.0.1:23800
begin apiserver "$home/bin/kube-apiserver" --etcd-servers=http://127.0.0.1:23790 --service-account-issuer=https://local --service-account-key-file=sa.pub --service-account-signing-key-file=sa.key --token-auth-file=tokens.csv --authorization-mode=Node,RBAC --secure-port=16443 --bind-address=0.0.0.0 --advertise-address="$address" --cert-dir=certs --service-cluster-ip-range=$services --allow-privileged=false --kubelet-preferred-address-types=InternalIP --requestheader-client-ca-file=front.pem --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- --proxy-client-cert-file=front.pem --proxy-client-key-file=front.key
kubectl() { "$home/bin/kubectl" --kubeconfig "$run/kubeconfig" "$@"; }
wait_for "the API server" kubectl get --raw /readyz
begin containerd containerd -c containerd.toml
ctr=(ctr -a "$run/containerd/socket" -n k8s.io)
wait_for containerd "${ctr[@]}" version
printf '#include <signal.h>\n#include <unistd.h>\nstatic void end(int s){(void)s;_exit(0);}\nint main(void){signal(SIGTERM,end);signal(SIGINT,end);for(;;)pause();}\n' >pause.c
gcc -static -Os -o pause pause.c
tar -c pause | docker import -c 'ENTRYPOINT ["/pause"]' - local/pause:1 >/dev/null && docker save local/pause:1 | "${ctr[@]}" images import - >/dev/null
begin controller-manager "$home/bin/kube-controller-manager" --kubeconfig kubeconfig --service-account-private-key-file=sa.key --use-service-account-credentials=true --root-ca-file=certs/apiserver.crt --leader-elect=false --bind-address=127.0.0.1 --cert-dir=cm --horizontal-pod-autoscaler-sync-period=5s --horizontal-pod-autoscaler-downscale-stabilization=20s
begin scheduler "$home/bin/kube-scheduler" --kubeconfig kubeconfig --leader-elect=false --bind-address=127.0.0.1 --cert-dir=sched
begin kubelet "$home/bin/kubelet" --kubeconfig kubeconfig --config kubelet.yaml --root-dir "$run/kubelet" --cert-dir kubelet-certs --hostname-override node1
# An address that kube-proxy does not know yet would leave the node, and a gateway that answers pass for the service.
for chain in OUTPUT FORWARD; do iptables -C $chain -d $services -j REJECT 2>/dev/null || iptables -A $chain -d $services -j REJECT; done
# Docker's engine has all forwarding dropped that is not its own. Last: kube-proxy's refusals stand before.
for way in -i -o; do iptables -C FORWARD $way kube0 -j ACCEPT 2>/dev/null || iptables -A FORWARD $way kube0 -j ACCEPT; done
begin proxy "$home/bin/kube-proxy" --kubeconfig kubeconfig --hostname-override node1 --cluster-cidr $pods --proxy-mode iptables --metrics-bind-address 127.0.0.1:16249 --healthz-bind-address 127.0.0.1:16256 --conntrack-max-per-core 0
begin coredns "$home/bin/coredns" -conf Corefile
is_ready() { kubectl get nodes | grep -q ' Ready' && kubectl get serviceaccount default; }
wait_for "the node" is_ready
echo "$run/kubeconfig"
