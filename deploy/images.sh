#!/bin/sh
# Build the images that a cluster needs, and load them into the Kubernetes that kubectl points to.
#
# Builds with the first of docker, podman, nerdctl and buildah that is there (TOOL names another
# one), and loads into kind, k3d, minikube and the cluster of `make cluster`. Docker Desktop and
# Rancher Desktop see what was built. For any other Kubernetes it says what to push.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' helm/liftbridge-operator/Chart.yaml)
parts=${PARTS:-broker operator}

image() { echo "docker.io/library/liftbridge-$1:$version"; }
has() { command -v "$1" >/dev/null 2>&1; }
fail() { echo "images: $*" >&2; exit 1; }

context=$(kubectl config current-context 2>/dev/null || true)
case ${KUBECONFIG:-} in
  "$PWD"/.cluster/*)
    for part in $parts; do
      tests/e2e/cluster/images.sh build "$(image "$part")" "Dockerfile.$part"
    done
    exit ;;
esac

tool=${TOOL:-}
for one in docker podman nerdctl buildah; do
  if [ -z "$tool" ] && has "$one"; then tool=$one; fi
done
[ -n "$tool" ] || fail "needs docker, podman, nerdctl or buildah to build images; none is on the PATH." \
  "Without one, see docs/how-to/kubernetes-without-docker.md."
has "$tool" || fail "TOOL=$tool is not on the PATH"

archive=$(mktemp -d)
trap 'rm -rf "$archive"' EXIT

for part in $parts; do
  echo "images: $tool builds $(image "$part")"
  "$tool" build -f "Dockerfile.$part" -t "$(image "$part")" .
done

# saved PART: the image as an archive, which every local cluster can read.
saved() {
  file=$archive/$1.tar
  case $tool in
    buildah) buildah push -q "$(image "$1")" "docker-archive:$file:$(image "$1")" ;;
    *) "$tool" save -o "$file" "$(image "$1")" ;;
  esac
  echo "$file"
}

for part in $parts; do
  case $context in
    kind-*) kind load image-archive --name "${context#kind-}" "$(saved "$part")" ;;
    k3d-*) k3d image import --cluster "${context#k3d-}" "$(saved "$part")" ;;
    minikube) minikube image load "$(saved "$part")" ;;
    docker-desktop | rancher-desktop) ;;
    *) echo "images: context '${context:-none}' is no local cluster: push $(image "$part") where its" \
      "nodes pull from, and give the chart image.repository and brokerImage" ;;
  esac
done
