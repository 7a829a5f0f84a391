#!/bin/bash
# What the running cluster uses: CPU over SECONDS (30; 100% is one core), and memory (PSS:
# shared pages counted once). usage.sh [SECONDS]
source "$(dirname "$0")/lib.sh"
secs=${1:-30}
hierarchy=${CGROUPS%%$'\n'*}/$KUBE_PREFIX

pids() {
  cat "$KUBE_STATE"/*.main
  find "$hierarchy" -mindepth 1 -name cgroup.procs -exec cat {} +
}
snapshot() {
  local p
  for p in $(pids | sort -u); do
    awk -v p="$p" '{sub(/.*\) /, ""); print p, $12 + $13}' "/proc/$p/stat" 2>/dev/null || true
  done | sort
}

snapshot >"$KUBE_STATE/cpu0"; sleep "$secs"; snapshot >"$KUBE_STATE/cpu1"
join "$KUBE_STATE/cpu0" "$KUBE_STATE/cpu1" | while read -r p a b; do
  pss=$(awk '/^Pss:/ {print $2}' "/proc/$p/smaps_rollup" 2>/dev/null) || continue
  echo "$(ps -o comm= -p "$p") $((b - a)) ${pss:-0}"
done | awk -v s="$secs" -v hz="$(getconf CLK_TCK)" '
  {n[$1]++; c[$1] += $2; m[$1] += $3; C += $2; M += $3}
  END {printf "%-18s %3s %7s %8s\n", "program", "n", "cpu %", "PSS MiB"
       for (p in n) printf "%-18s %3d %7.2f %8.0f\n", p, n[p], 100 * c[p] / hz / s, m[p] / 1024
       printf "%-18s %3s %7.2f %8.0f\n", "all", "", 100 * C / hz / s, M / 1024}'
