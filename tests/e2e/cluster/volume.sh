#!/bin/bash
# Volumes of nodes. The provisioner calls the first three; tests break volumes with the others.
# PV is the name of a PersistentVolume.
#   volume.sh create NODE PV BYTES disk|directory
#   volume.sh grow NODE PV BYTES      a disk: while it is mounted and written to
#   volume.sh delete NODE PV
#   volume.sh lose NODE PV            the volume is gone with its data; NODE has crashed
#   volume.sh readonly NODE PV        a disk: from now on every write fails with EROFS, as after an
#                                     error of the device; crash and start of the node mend it
#   volume.sh path NODE PV            where the machine sees its content (a directory), or where
#                                     its image lies (a disk)
# A directory is what most tests want: it costs nothing. A disk is an ext4 file system in a file:
# it has the size that was asked for, grows, fills up, and breaks.
source "$(dirname "$0")/lib.sh"
[ $# -ge 3 ] || die "volume.sh create|grow|delete|lose|readonly|path NODE PV [...]"
cmd=$1 node=$2 pv=$3; shift 3
dir=$KUBE_STATE/nodes/$node/pv/$pv image=$KUBE_STATE/nodes/$node/disks/$pv.img
mounted=/var/lib/pv/$pv                 # where the node sees it

create() {
  mkdir -p "$dir"
  chmod 777 "$dir"
  [ "$2" = disk ] || return 0
  if [ ! -e "$image" ]; then
    truncate -s "$1" "$image.tmp"
    mkfs.ext4 -q -m 0 -E "nodiscard,root_owner=0:0" "$image.tmp"
    mv "$image.tmp" "$image"
  fi
  in_node "$node" mountpoint -q "$mounted" || in_node "$node" mount -o loop "$image" "$mounted"
  in_node "$node" chmod 777 "$mounted"
}

grow() {
  [ -e "$image" ] || die "$pv is no disk: it has no size to grow"
  truncate -s "$1" "$image"
  local device; device=$(in_node "$node" findmnt -n -o SOURCE "$mounted")
  in_node "$node" losetup -c "$device"
  in_node "$node" resize2fs "$device" 2>/dev/null
}

delete() {
  if running "$KUBE_STATE/nodes/$node/pid" && in_node "$node" mountpoint -q "$mounted"; then
    in_node "$node" umount "$mounted"
  fi
  rm -rf "$dir" "$image"
}

lose() {
  if running "$KUBE_STATE/nodes/$node/pid"; then die "crash $node first"; fi
  rm -rf "$dir" "$image"
}

case $cmd in
  create | grow | delete | lose) $cmd "$@" ;;
  readonly) in_node "$node" mount -o remount,abort "$mounted" ;;
  path) if [ -e "$image" ]; then echo "$image"; else echo "$dir"; fi ;;
  *) die "unknown command $cmd" ;;
esac
