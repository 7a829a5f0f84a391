#!/bin/bash
# Container images, without a registry and without Docker.
#   images.sh make         makes what is missing of the pause image, the Python base image, and
#                          the store that new nodes begin with
#   images.sh build TAG DOCKERFILE [BUILDAH OPTION...]
#                          builds DOCKERFILE in the root of the repository as TAG, upon the
#                          Python base image, and loads it into every running node; Dockerfile.spark
#                          upon one with Java, which is made when it is missing
#   images.sh target NAME DIR DOCKERFILE
#                          builds one target of DOCKERFILE and puts its files into DIR
#   images.sh load TAR...  loads archives of images into every running node
# What lies in KUBE_OUT/images when up.sh runs is on every node from the start.
source "$(dirname "$0")/lib.sh"
mkdir -p "$IMAGES"
export BUILDAH_ISOLATION=chroot

# save TAG FILE: buildah's image TAG to an archive that holds it as TAG.
save() { rm -f "$2.tmp" && buildah push -q "$1" "docker-archive:$2.tmp:$1" && mv "$2.tmp" "$2"; }

pause() {
  local tmp c; tmp=$(mktemp -d)
  gcc -static -Os -s -o "$tmp/pause" "$HERE/pause/pause.c"
  c=$(buildah from scratch)
  buildah add -q "$c" "$tmp/pause" /pause >/dev/null
  buildah config --entrypoint '["/pause"]' "$c"
  buildah commit -q --rm "$c" "$PAUSE" >/dev/null
  save "$PAUSE" "$IMAGES/pause.tar"
  rm -rf "$tmp"
}

# python_base TAG FILE [PACKAGE...]: a Python on Debian. Packages are unpacked, not installed: a third of the time. The few files
# that their install scripts would make are made by hand, and what each package says of itself is
# kept where images without a package manager have it, for the bill of materials.
python_base() {
  local tag=$1 file=$2 tmp c root more java; tmp=$(mktemp -d); shift 2
  more=$(printf ',%s' "$@"); [ $# -gt 0 ] || more=
  # shellcheck disable=SC2016 # the hook's own shell expands these
  mmdebstrap -q --variant=extract --format=tar --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include=base-files,libc-bin,dash,coreutils,sed,grep,python3,python3-pip-whl,"ca-certificates,libstdc++6$more" \
    --extract-hook='mkdir -p "$1/var/lib/dpkg/status.d"; for d in "$1"/var/cache/apt/archives/*.deb; do
      dpkg-deb -f "$d" >"$1/var/lib/dpkg/status.d/$(dpkg-deb -f "$d" Package)"; done' \
    bookworm "$tmp/rootfs.tar"
  c=$(buildah from scratch)
  buildah add -q "$c" "$tmp/rootfs.tar" / >/dev/null
  root=$(buildah mount "$c")
  mkdir -p "$root/tmp" "$root/root" "$root/etc/ssl/certs" "$root/usr/local/bin"
  chmod 1777 "$root/tmp"
  [ -e "$root/bin/sh" ] || ln -s dash "$root/bin/sh"
  printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n' \
    >"$root/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
  echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
  cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
  ln -sf python3 "$root/usr/bin/python"
  # pip, run from its own wheel.
  cat >"$root/usr/local/bin/pip" <<'X'
#!/bin/sh
PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) exec python3 -m pip "$@"
X
  chmod 755 "$root/usr/local/bin/pip"
  rm -f "$root/usr/lib/python3.11/EXTERNALLY-MANAGED"
  for java in "$root"/usr/lib/jvm/java-*/bin/java; do
    [ ! -e "$java" ] || ln -sf "${java#"$root"}" "$root/usr/bin/java"
  done
  rm -rf "$root/var/lib/apt" "$root/var/cache"
  buildah umount "$c" >/dev/null
  buildah config --cmd python3 --env PYTHONUNBUFFERED=1 --env PYTHONDONTWRITEBYTECODE=1 "$c"
  buildah commit -q --rm "$c" "$tag" >/dev/null
  save "$tag" "$file"
  rm -rf "$tmp"
}

base() { python_base "$BASE" "$IMAGES/python.tar"; }

# Scripts of Spark are those of bash. Not among the images of new nodes: only what is built upon it.
java_base() { python_base "$JAVA_BASE" "$KUBE_OUT/java.tar" bash openjdk-17-jre-headless; }

# All of KUBE_OUT/images, unpacked once by a containerd of its own.
store() {
  local run pid t; run=$(mktemp -d)
  rm -rf "$KUBE_OUT/image-store"
  containerd_config "$KUBE_OUT/image-store" "$run" >"$run/containerd.toml"
  containerd --config "$run/containerd.toml" >"$run/log" 2>&1 &
  pid=$!
  wait_for 30 containerd ctr -a "$run/containerd.sock" version
  for t in "$IMAGES"/*.tar; do
    ctr -a "$run/containerd.sock" -n k8s.io images import "$t" >/dev/null
  done
  kill $pid; wait $pid || true
  touch "$KUBE_OUT/image-store"
  # Each node makes a uuid of its own.
  rm -rf "$run" "$KUBE_OUT/image-store/io.containerd.grpc.v1.introspection"
}

make() {
  [ -s "$IMAGES/pause.tar" ] || { pause; say "pause image made"; }
  [ -s "$IMAGES/python.tar" ] || { base; say "Python base image made"; }
  # A folder's time is that of the last archive that came or went.
  [ -n "$(find "$KUBE_OUT/image-store" -maxdepth 0 -newer "$IMAGES" 2>/dev/null)" ] ||
    { store; say "image store made"; }
}

# pip_config FILE: what this machine's pip is configured with, for the pip within a build; folders
# of wheels are left out, for they are not there.
pip_config() {
  {
    echo '[global]'
    python3 -m pip config list 2>/dev/null | sed -nE \
      "s/^(global|install|:env:)\.(index-url|extra-index-url|trusted-host|default-timeout|timeout)='(.*)'$/\2 = \3/p"
    [ ! -s /etc/ssl/certs/ca-certificates.crt ] || echo 'cert = /etc/ssl/certs/ca-certificates.crt'
  } >"$1"
}

# bud DOCKERFILE OPTION...: buildah on the root of the repository.
bud() {
  local file=$1 base=$BASE archive=$IMAGES/python.tar config status=0; shift
  if [ "$file" = Dockerfile.spark ]; then
    base=$JAVA_BASE archive=$KUBE_OUT/java.tar
    [ -s "$archive" ] || java_base
  fi
  # KUBE_OUT may be a cache that outlived the storage of buildah.
  buildah inspect --type image "$base" >/dev/null 2>&1 ||
    buildah pull -q "docker-archive:$archive" >/dev/null
  config=$(mktemp); pip_config "$config"
  buildah bud -q --network host --layers --pull-never -v "$config:/etc/pip.conf:ro" \
    -v /etc/ssl/certs:/etc/ssl/certs:ro --build-arg "BASE=$base" \
    --build-arg "REVISION=$(git -C "$ROOT" rev-parse HEAD 2>/dev/null || echo unknown)" \
    "$@" -f "$ROOT/$file" "$ROOT" || status=$?
  rm -f "$config"
  return $status
}

build() {
  local tag=$1 file=$2 tar; shift 2
  tar=$IMAGES/$(tr '/:' '__' <<<"$tag").tar
  bud "$file" -t "$tag" "$@" >/dev/null
  save "$tag" "$tar"
  say "$tag built: $(($(stat -c %s "$tar") / 1000000)) MB unpacked"
  load "$tar"
}

target() {
  local name=$1 dir=$2 file=$3 c
  mkdir -p "$dir"
  bud "$file" --target "$name" -t "liftbridge.test/target:$name" >/dev/null
  c=$(buildah from --pull-never "liftbridge.test/target:$name")
  cp -r "$(buildah mount "$c")/." "$dir/"
  buildah rm "$c" >/dev/null
}

load() {
  local n t pids=()
  for n in $(nodes); do
    for t in "$@"; do
      in_node "$n" ctr -n k8s.io images import "$(realpath "$t")" >/dev/null
    done &
    pids+=($!)
  done
  for n in "${pids[@]}"; do wait "$n"; done
}

case ${1:-} in
  make | build | target | load) "$@" ;;
  *) die "images.sh make | build TAG DOCKERFILE | target NAME DIR DOCKERFILE | load TAR..." ;;
esac
