#!/bin/bash
# Process 1 of a node. node.sh runs it in namespaces of its own (net, mount, pid, uts, ipc,
# cgroup); when it dies, the kernel ends all that runs on the node and drops its mounts.
# Usage: node-init.sh NODE NODE_IP DIR
set -euo pipefail
NODE=$1 IP=$2 DIR=$3
hostname "$NODE"
mount --make-rshared /               # kubelet needs mount propagation

# /sys of this network namespace; cgroups as seen from the root of the node.
controllers=$(awk '$3 == "cgroup" {print $2}' /proc/mounts)
has_v2=$(awk '$3 == "cgroup2" {print $2}' /proc/mounts)
mount -t sysfs sysfs /sys
if [ -n "$controllers" ]; then
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  for c in $controllers; do
    name=${c##*/}; opt=$name
    [ "$name" = systemd ] && opt=none,name=systemd
    mkdir -p "$c" && mount -t cgroup -o "$opt" cgroup "$c"
  done
fi
for c in $has_v2; do mkdir -p "$c"; mount -t cgroup2 cgroup2 "$c"; done

# The paths that containerd, CNI and the kubelet write to are the node's own.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/containerd
for d in /var/lib/containerd /var/lib/kubelet /var/lib/cni /var/lib/pv /var/log /etc/cni/net.d; do
  mkdir -p "$DIR/${d##*/}" "$d"
  mount --bind "$DIR/${d##*/}" "$d"
done

sysctl -qw net.ipv4.ip_forward=1
sysctl -qw net.bridge.bridge-nf-call-iptables=1 2>/dev/null || true

# service NAME COMMAND...: keeps a daemon running, as systemd would. Its pid is in
# /run/NAME.pid; while /run/NAME.hold exists it is not started again.
service() {
  local name=$1; shift
  while :; do
    if [ ! -e "/run/$name.hold" ]; then
      "$@" >>"$DIR/$name.out" 2>&1 & echo $! >"/run/$name.pid"
      wait $! || true
    fi
    sleep 0.5
  done
}
# Disks: volumes of the class "disk" (see volume.sh), checked as at any boot. One that cannot be
# mounted is missing, as on a real node.
for image in "$DIR"/disks/*.img; do
  [ -e "$image" ] || continue
  volume=/var/lib/pv/$(basename "$image" .img)
  e2fsck -p "$image" || echo "$image: e2fsck ended with $?"
  mount -o loop "$image" "$volume" || { echo "$image: not mounted"; rmdir "$volume"; }
done

service containerd containerd --config "$DIR/containerd.toml" &
service kube-proxy kube-proxy --config="$DIR/kube-proxy.yaml" &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
service kubelet kubelet --config="$DIR/kubelet.yaml" --kubeconfig="$DIR/kubelet.kubeconfig" \
  --node-ip="$IP" --housekeeping-interval=30s \
  --node-labels="topology.kubernetes.io/zone=zone-$NODE,topology.kubernetes.io/region=test" &
wait                                 # for ever; bash reaps orphans meanwhile
