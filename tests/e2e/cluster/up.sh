#!/bin/bash
# Brings the cluster up: up.sh [--nodes N]. Needs what build.sh makes.
source "$(dirname "$0")/lib.sh"
if [ "${1:-}" = --nodes ]; then KUBE_NODES=$2; fi
[ -x "$BIN/kube-apiserver" ] || die "nothing is built in $KUBE_OUT: run $HERE/build.sh first"
check up

mkdir -p "$KUBE_STATE"
[ "$KUBE_TMPFS" = 0 ] || mountpoint -q "$KUBE_STATE" ||
  mount -t tmpfs -o "size=$KUBE_TMPFS,mode=755" tmpfs "$KUBE_STATE"
mkdir -p "$PKI" "$KUBE_STATE/nodes"
"$HERE/images.sh" make                # also takes in images built since
[ -d "$KUBE_STATE/image-store" ] || cp -a "$KUBE_OUT/image-store" "$KUBE_STATE/image-store"

# Bridge. Its .1 is the address of the control plane. Addresses of the cluster that nobody has must
# not go out by the default route of this machine.
ip link show "$BRIDGE" >/dev/null 2>&1 || ip link add "$BRIDGE" type bridge
ip addr replace "$KUBE_NET.1/24" dev "$BRIDGE"
ip link set "$BRIDGE" up
ip route replace unreachable "$KUBE_POD_NET.0.0/16"
ip route replace unreachable "$KUBE_SVC_NET.0.0/16"

# Keys and certificates.
[ -s "$PKI/ca.crt" ] ||
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=kube-ca \
  -addext basicConstraints=critical,CA:TRUE \
  -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature \
  -keyout "$PKI/ca.key" -out "$PKI/ca.crt" 2>/dev/null
[ -s "$PKI/sa.key" ] || {
  openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/sa.key"
  openssl ec -in "$PKI/sa.key" -pubout -out "$PKI/sa.pub" 2>/dev/null
}
names=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc
names+=,DNS:kubernetes.default.svc.cluster.local
cert apiserver kube-apiserver "" "$names,IP:127.0.0.1,IP:$KUBE_NET.1,IP:$KUBE_SVC_NET.0.1"
for u in admin controller-manager apiserver-kubelet-client provisioner; do cert "$u" "$u" system:masters; done
cert scheduler system:kube-scheduler
cert kube-proxy system:kube-proxy
cert coredns system:coredns
for u in admin controller-manager scheduler kube-proxy coredns provisioner; do
  [ -s "$KUBE_STATE/$u.kubeconfig" ] || kubeconfig "$u" >"$KUBE_STATE/$u.kubeconfig"
done

# Control plane. One of each: no leader election, no fsync, no fairness queues.
daemon etcd etcd --data-dir "$KUBE_STATE/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:12379 --advertise-client-urls http://127.0.0.1:12379 \
  --listen-peer-urls http://127.0.0.1:12380 --initial-advertise-peer-urls http://127.0.0.1:12380 \
  --initial-cluster default=http://127.0.0.1:12380
daemon kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:12379 \
  --bind-address="$KUBE_NET.1" --advertise-address="$KUBE_NET.1" --secure-port=6443 \
  --service-cluster-ip-range="$KUBE_SVC_NET.0.0/16" --allow-privileged \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --client-ca-file="$PKI/ca.crt" \
  --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
  --kubelet-client-certificate="$PKI/apiserver-kubelet-client.crt" \
  --kubelet-client-key="$PKI/apiserver-kubelet-client.key" \
  --kubelet-preferred-address-types=InternalIP \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local \
  --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
  --enable-aggregator-routing --enable-priority-and-fairness=false --profiling=false \
  --audit-policy-file="$HERE/audit-policy.yaml" --audit-log-path="$KUBE_STATE/audit.log" \
  --audit-log-maxsize=200 --audit-log-maxbackup=4 \
  --default-not-ready-toleration-seconds="$KUBE_TOLERATION" \
  --default-unreachable-toleration-seconds="$KUBE_TOLERATION"
daemon kube-controller-manager kube-controller-manager --kubeconfig="$KUBE_STATE/controller-manager.kubeconfig" \
  --leader-elect=false --secure-port=0 --profiling=false \
  --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt" \
  --controllers="*$(printf ',-%s-controller' bootstrap-signer token-cleaner node-ipam service-lb \
    node-route cloud-node-lifecycle)" \
  --node-monitor-period=2s --node-monitor-grace-period="$KUBE_NODE_GRACE" \
  --kube-api-qps=100 --kube-api-burst=200
daemon kube-scheduler kube-scheduler --kubeconfig="$KUBE_STATE/scheduler.kubeconfig" \
  --leader-elect=false --secure-port=0 --profiling=false
say "control plane started"

# Nodes boot while the API server does.
for i in $(seq "$KUBE_NODES"); do "$HERE/node.sh" start "n$i"; done
say "nodes started"

wait_for 120 "the API server" kubectl get --raw /readyz
say "API server ready"
kubectl apply --server-side --force-conflicts --validate=false -f - >"$KUBE_STATE/apply.log" <<X
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: liftbridge.test/volume
parameters: {medium: directory}
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Delete
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: disk}
provisioner: liftbridge.test/volume
parameters: {medium: disk}
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
reclaimPolicy: Delete
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: $KUBE_SVC_NET.0.10
  ports:
  - {name: dns, port: 53, protocol: UDP, targetPort: 10053}
  - {name: dns-tcp, port: 53, targetPort: 10053}
---
# CoreDNS runs beside the API server, not in a pod: no image, and up at once.
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-host, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: ["$KUBE_NET.1"], conditions: {ready: true}}]
ports: [{name: dns, port: 10053, protocol: UDP}, {name: dns-tcp, port: 10053}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects: [{kind: User, name: system:coredns}]
X
cat >"$KUBE_STATE/Corefile" <<X
cluster.local:10053 in-addr.arpa:10053 {
  bind $KUBE_NET.1
  errors
  ready 127.0.0.1:18181
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $KUBE_STATE/coredns.kubeconfig
    pods insecure
    ttl 1
  }
  loadbalance
}
.:10053 {
  bind $KUBE_NET.1
  template ANY ANY {
    rcode NXDOMAIN
  }
}
X
daemon coredns coredns -conf "$KUBE_STATE/Corefile"
daemon pv-provisioner pv-provisioner --kubeconfig "$KUBE_STATE/provisioner.kubeconfig" \
  --volume-command "$HERE/volume.sh"
say "storage classes and DNS service applied"

nodes_ready() {
  [ "$(kubectl get nodes --no-headers 2>/dev/null | grep -cw Ready)" -ge "$KUBE_NODES" ]
}
wait_for 120 "ready nodes" nodes_ready
wait_for 30 "DNS" curl -sf http://127.0.0.1:18181/ready
wait_for 30 "the default service account" kubectl get sa default
say "cluster ready: export KUBECONFIG=$KUBECONFIG PATH=$BIN:\$PATH"
