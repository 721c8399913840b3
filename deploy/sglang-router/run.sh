#!/usr/bin/env bash
# lca behind sglang-router on one machine: N servers on loopback and the router in front of them.
#
#   deploy/sglang-router/run.sh MODEL [flags of lca serve]
#
#   LCA=lca  REPLICAS=2  PORT=8000  FIRST_PORT=8101  PYTHON=python3 (with requirements.txt)
#
# It ends when the router ends or a signal comes; the servers are drained then. On several machines start
# `lca serve` on each (systemd: deploy/lca.service) and only the router here, with their addresses.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }

lca=${LCA:-lca} replicas=${REPLICAS:-2} port=${PORT:-8000} first=${FIRST_PORT:-8101} python=${PYTHON:-python3}
urls=() servers=()
trap 'kill "${servers[@]}" ${router:-} 2>/dev/null || true; wait' EXIT
trap 'exit 143' INT TERM

for ((i = 0; i < replicas; i++)); do
  "$lca" serve "$@" --host 127.0.0.1 --port $((first + i)) &
  servers+=($!)
  urls+=("http://127.0.0.1:$((first + i))")
done

# cache_aware: a request goes where the longest beginning of its text went before, unless the load differs by more
# than the thresholds. A server that fails is left out until /health is 200 again, and its request is asked elsewhere.
"$python" -m sglang_router.launch_router --host 127.0.0.1 --port "$port" --worker-urls "${urls[@]}" \
  --policy cache_aware --cache-threshold 0.3 --balance-abs-threshold 32 --balance-rel-threshold 1.5 \
  --worker-startup-timeout-secs 600 --request-timeout-secs 3600 --max-payload-size 67108864 \
  --health-check-endpoint /health --health-check-interval-secs 5 --health-failure-threshold 2 \
  --health-success-threshold 1 --cb-failure-threshold 3 --cb-timeout-duration-secs 10 \
  --retry-max-retries 4 --prometheus-host 127.0.0.1 --prometheus-port "${PROMETHEUS_PORT:-29000}" &
router=$!
wait "$router"
