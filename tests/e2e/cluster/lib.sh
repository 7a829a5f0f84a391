#!/bin/bash
# Settings and helpers shared by the scripts beside this file, which source it.
# shellcheck disable=SC2034,SC2119 # they use the variables; arguments of functions are optional
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)

: "${KUBE_STATE:=$ROOT/.cluster/state}" # everything a running cluster writes
: "${KUBE_OUT:=$ROOT/.cluster/out}"     # what build.sh makes; keep it between runs of CI
: "${KUBE_NODES:=3}"                    # up.sh --nodes N stands over it
: "${KUBE_TMPFS:=12g}"                  # size of the tmpfs at KUBE_STATE; 0: on the disk
: "${KUBE_NET:=172.30.0}"               # /24 of the nodes; .1 is the control plane
: "${KUBE_POD_NET:=10.244}"             # /16 of the pods; node I has <this>.I.0/24
: "${KUBE_SVC_NET:=10.96}"              # /16 of the services; .0.10 is DNS
: "${KUBE_PREFIX:=lbk}"                 # begins names of bridge, veths, netns, cgroups
: "${KUBE_RUNTIME:=crun}"               # what containerd starts containers with
: "${KUBE_NODE_GRACE:=20s}"             # silence after which a node is NotReady
: "${KUBE_TOLERATION:=30}"              # seconds until pods of such a node are deleted

NS=$KUBE_PREFIX-                        # netns and veth of node I are called ${NS}nI
BRIDGE=${KUBE_PREFIX}br0
API=https://$KUBE_NET.1:6443
PKI=$KUBE_STATE/pki
BIN=$KUBE_OUT/bin
IMAGES=$KUBE_OUT/images                 # each *.tar in it is on every new node
PAUSE=liftbridge.test/pause:1
BASE=liftbridge.test/python:3.11
JAVA_BASE=liftbridge.test/python-java:3.11
PROGRAMS="kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl helm etcd
  coredns pv-provisioner"
CGROUPS=$(awk '$3 == "cgroup" || $3 == "cgroup2" {print $2}' /proc/mounts)
# The programs of the cluster go before what the machine has under the same names.
export PATH=$BIN:$PATH KUBECONFIG=$KUBE_STATE/admin.kubeconfig
export KUBE_STATE KUBE_OUT KUBE_NET KUBE_POD_NET KUBE_SVC_NET KUBE_PREFIX

say() { printf '%(%H:%M:%S)T %6.1fs  %s\n' -1 "$(since "$T0")" "$*"; }
now() { date +%s.%N; }
since() { echo "$(now) - $1" | bc; }
T0=$(date +%s.%N)
die() { echo "error: $*" >&2; exit 1; }

# check [build|up]: ends with one message that names everything that is missing.
check() { PYTHONPATH=$ROOT/tests/testkit/src python3 -m liftbridge_testkit.kube.check "$@"; }

# wait_for SECONDS WHAT COMMAND...: polls until COMMAND succeeds.
wait_for() {
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "timed out waiting for $what: $*"
    sleep 0.1
  done
}

# daemon NAME COMMAND...: keeps a program of the control plane running, as systemd would.
# In KUBE_STATE: NAME.pid is its keeper (a process group), NAME.main the program.
daemon() {
  local name=$1; shift
  running "$KUBE_STATE/$name.pid" && return
  # shellcheck disable=SC2016 # the inner shell expands these
  setsid bash -c 'while :; do "$@" & echo $! >"$0.main"; wait $!; sleep 0.5; done' \
    "$KUBE_STATE/$name" "$@" </dev/null >>"$KUBE_STATE/$name.log" 2>&1 &
  echo $! >"$KUBE_STATE/$name.pid"
}
# running PIDFILE: its process lives and is ours (each names a path in KUBE_STATE).
running() {
  [ -s "$1" ] && { tr '\0' ' ' <"/proc/$(cat "$1")/cmdline"; } 2>/dev/null | grep -qF "$KUBE_STATE"
}

nodes() { ls "$KUBE_STATE/nodes" 2>/dev/null || true; }
# in_node NODE COMMAND...: runs a command inside a running node.
in_node() {
  local init; init=$(node_init "$1"); shift
  nsenter -t "$init" -m -u -i -n -p -C -- "$@"
}
# The node's process 1: the only child of the unshare that was started for it.
node_init() {
  local pid; pid=$(cat "$KUBE_STATE/nodes/$1/pid")
  tr -d ' ' <"/proc/$pid/task/$pid/children"
}

# cert NAME CN [ORG [SAN]]: a key and a certificate of the cluster's CA in PKI.
cert() {
  local name=$1 cn=$2 org=${3:-} san=${4:-}
  [ -s "$PKI/$name.crt" ] && return
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 \
    -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -subj "/${org:+O=$org/}CN=$cn" \
    -addext basicConstraints=critical,CA:FALSE \
    -addext extendedKeyUsage=clientAuth,serverAuth ${san:+-addext "subjectAltName=$san"} \
    -keyout "$PKI/$name.key" -out "$PKI/$name.crt" 2>/dev/null
}

# kubeconfig NAME: prints one that signs in with the certificate NAME.
kubeconfig() {
  cat <<X
apiVersion: v1
kind: Config
current-context: liftbridge
clusters:
- name: liftbridge
  cluster: {server: "$API", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}
users:
- name: $1
  user:
    client-certificate-data: $(base64 -w0 "$PKI/$1.crt")
    client-key-data: $(base64 -w0 "$PKI/$1.key")
contexts:
- name: liftbridge
  context: {cluster: liftbridge, user: $1}
X
}

# containerd_config [ROOT STATE]: prints a configuration of containerd 1.6.
containerd_config() {
  cat <<X
version = 2
root = "${1:-/var/lib/containerd}"
state = "${2:-/run/containerd}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.restart",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "${2:-/run/containerd}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE"
  disable_apparmor = true
  restrict_oom_score_adj = true        # CAP_SYS_RESOURCE may be missing
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "$KUBE_RUNTIME"
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
X
}
