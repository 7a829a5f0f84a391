#!/bin/bash
# Takes the cluster down and leaves nothing: processes, mounts, namespaces, links, routes,
# cgroups, state. What build.sh made stays.
source "$(dirname "$0")/lib.sh"
for n in $(nodes); do "$HERE/node.sh" crash "$n" & done
wait
for p in pv-provisioner coredns kube-scheduler kube-controller-manager kube-apiserver etcd; do
  if running "$KUBE_STATE/$p.pid"; then kill -9 -- "-$(cat "$KUBE_STATE/$p.pid")" || true; fi
done
for n in $(nodes); do "$HERE/node.sh" unplug "$n"; done
ip link del "$BRIDGE" 2>/dev/null || true
ip route del unreachable "$KUBE_POD_NET.0.0/16" 2>/dev/null || true
ip route del unreachable "$KUBE_SVC_NET.0.0/16" 2>/dev/null || true
for c in $CGROUPS; do
  [ ! -d "$c/$KUBE_PREFIX" ] || find "$c/$KUBE_PREFIX" -depth -type d -exec rmdir {} +
done
if mountpoint -q "$KUBE_STATE"; then wait_for 10 "the unmount of the state" umount "$KUBE_STATE"; fi
rm -rf "$KUBE_STATE"
say "cluster down"
