#!/bin/bash
# One node: node.sh CMD NODE [...], NODE is n1, n2, ...
#   start      make the node if new, and boot it
#   crash      power off at once: SIGKILL to all that runs on it (start boots it again)
#   destroy    crash it, and lose it with its disks; start makes a new one of that name
#   unplug     take away the network of a node that does not run
#   cut, heal  pull its network cable out, put it back
#   pause, resume  freeze and thaw all its processes (a node that hangs)
#   stop NODE DAEMON, restart NODE DAEMON   only kubelet, containerd or kube-proxy;
#              the pods live on
#   exec NODE COMMAND...   run a command on the node
source "$(dirname "$0")/lib.sh"
[ $# -ge 2 ] || die "node.sh CMD NODE [...]"
cmd=$1 node=$2; shift 2
i=${node#n} dir=$KUBE_STATE/nodes/$node ns=$NS$node ip=$KUBE_NET.$((10 + ${node#n}))

start() {
  if running "$dir/pid"; then return; fi
  [ -d "$dir" ] || create
  # A cgroup of its own in every hierarchy; the node sees it as "/".
  for c in $CGROUPS; do
    mkdir -p "$c/$KUBE_PREFIX/$node"
    for f in cpuset.mems cpuset.cpus; do
      [ -e "$c/$f" ] || continue
      cat "$c/$f" >"$c/$KUBE_PREFIX/$f"; cat "$c/$f" >"$c/$KUBE_PREFIX/$node/$f"
    done
  done
  ( for c in $CGROUPS; do echo "$BASHPID" >"$c/$KUBE_PREFIX/$node/cgroup.procs"; done
    exec setsid nsenter --net="/run/netns/$ns" \
      unshare --mount --pid --uts --ipc --cgroup --fork --kill-child --mount-proc \
      "$HERE/node-init.sh" "$node" "$ip" "$dir" </dev/null >>"$dir/init.out" 2>&1 ) &
  echo $! >"$dir/pid"
}

create() {
  # A cluster whose processes were killed one and all leaves its network behind.
  if [ -e "/run/netns/$ns" ]; then
    [ -z "$(ip netns pids "$ns")" ] ||
      die "another cluster has a node $node: take it down, or name another KUBE_PREFIX and KUBE_NET"
    unplug
  fi
  mkdir -p "$dir"
  # Network: a cable to the bridge, routes to the pods of the other nodes. No default route: what
  # is not in the cluster cannot be reached.
  ip netns add "$ns"
  ip link add "$ns" type veth peer name eth0 netns "$ns"
  ip link set "$ns" master "$BRIDGE" up
  ip -n "$ns" link set lo up
  ip -n "$ns" addr add "$ip/24" dev eth0
  ip -n "$ns" link set eth0 up
  ip -n "$ns" route add "$KUBE_SVC_NET.0.0/16" dev eth0   # kube-proxy rewrites it
  ip route replace "$KUBE_POD_NET.$i.0/24" via "$ip" dev "$BRIDGE"
  for other in $(nodes); do
    if [ "$other" = "$node" ]; then continue; fi
    ip -n "$ns" route replace "$KUBE_POD_NET.${other#n}.0/24" via "$KUBE_NET.$((10 + ${other#n}))"
    ip -n "$NS$other" route replace "$KUBE_POD_NET.$i.0/24" via "$ip"
  done
  # Images: hard links to those that were unpacked once; the databases are the node's own.
  cp -al "$KUBE_STATE/image-store" "$dir/containerd"
  find "$dir/containerd" -name '*.db' | while read -r f; do cp "$f" "$f.tmp"; mv "$f.tmp" "$f"; done
  mkdir -p "$dir/net.d" "$dir/disks"
  cat >"$dir/net.d/10-bridge.conflist" <<X
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$KUBE_POD_NET.$i.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
X
  # shellcheck disable=SC2119 # its arguments are optional
  containerd_config >"$dir/containerd.toml"
  cert "$node" "system:node:$node" system:nodes
  kubeconfig "$node" >"$dir/kubelet.kubeconfig"
  cat >"$dir/kube-proxy.yaml" <<X
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $KUBE_STATE/kube-proxy.kubeconfig}
clusterCIDR: $KUBE_POD_NET.0.0/16
hostnameOverride: $node
healthzBindAddress: ""
metricsBindAddress: ""
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {syncPeriod: 10m, minSyncPeriod: 200ms}
X
  cat >"$dir/kubelet.yaml" <<X
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failCgroupV1: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
failSwapOn: false
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $PKI/ca.crt}
authorization: {mode: Webhook}
clusterDNS: [$KUBE_SVC_NET.0.10]
clusterDomain: cluster.local
resolvConf: ""
# A dead node is NotReady about KUBE_NODE_GRACE after it died (see the controller manager).
nodeLeaseDurationSeconds: 16
nodeStatusUpdateFrequency: 5s
nodeStatusReportFrequency: 1m
# One machine, one disk: let no node evict pods or delete images for its sake.
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
serializeImagePulls: false
volumeStatsAggPeriod: -1s
localStorageCapacityIsolation: false
maxPods: 100
X
}

# gone: no process is left in the cgroups of the node, and the cgroups are gone too.
gone() {
  local c
  for c in $CGROUPS; do
    [ -d "$c/$KUBE_PREFIX/$node" ] || continue
    find "$c/$KUBE_PREFIX/$node" -depth -type d -exec rmdir {} + || return 1
  done
}

crash() {
  if ! running "$dir/pid"; then return; fi
  freeze THAWED                      # the frozen do not die
  kill -9 "$(cat "$dir/pid")"        # --kill-child: takes process 1 of the node with it
  wait_for 20 "the end of the processes of $node" gone
  rm -f "$dir/pid"
}

destroy() {
  crash
  unplug
  rm -rf "$dir"
}

# unplug: the node has no network any more.
unplug() {
  ip link del "$ns" 2>/dev/null || true
  ip netns del "$ns" 2>/dev/null || true
}

# freeze FROZEN|THAWED: of all processes of the node.
freeze() { echo "$1" >"$(grep -E '/freezer$' <<<"$CGROUPS")/$KUBE_PREFIX/$node/freezer.state"; }

case $cmd in
  start | crash | destroy | unplug) $cmd ;;
  pause) freeze FROZEN ;;
  resume) freeze THAWED ;;
  stop) in_node "$node" sh -c "touch /run/$1.hold; kill -9 \$(cat /run/$1.pid)" ;;
  restart) in_node "$node" sh -c "rm -f /run/$1.hold; kill -9 \$(cat /run/$1.pid) 2>/dev/null; :" ;;
  cut) ip link set "$ns" down ;;
  heal) ip link set "$ns" up ;;
  exec) in_node "$node" "$@" ;;
  *) die "unknown command $cmd" ;;
esac
