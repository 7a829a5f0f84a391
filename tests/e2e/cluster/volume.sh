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
# those who are not root have the size that was asked for; it grows, fills up, and breaks. It is made
# twice as large, and what is more is kept from them: a file system that is mounted grows by giving
# them more of that, because to enlarge it takes CAP_SYS_RESOURCE, which many machines lack.
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
    truncate -s $((2 * $1)) "$image.tmp"
    mkfs.ext4 -q -m 0 -E "nodiscard,root_owner=0:0" "$image.tmp"
    mv "$image.tmp" "$image"
  fi
  in_node "$node" mountpoint -q "$mounted" || in_node "$node" mount -o loop "$image" "$mounted"
  in_node "$node" chmod 777 "$mounted"
  give "$1"
}

# give BYTES: how much of the disk others than root have.
give() {
  local device blocks size
  read -r blocks size <<<"$(in_node "$node" stat -f -c '%b %S' "$mounted")"
  [ $((blocks * size)) -ge "$1" ] || die "$pv: a disk grows to less than twice its size"
  device=$(in_node "$node" findmnt -n -o SOURCE "$mounted")
  in_node "$node" tune2fs -r $((blocks - $1 / size)) "$device" >/dev/null
}

grow() {
  [ -e "$image" ] || die "$pv is no disk: it has no size to grow"
  give "$1"
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
