#!/usr/bin/env bash
# One worker of a cluster; worker 0 is the chief. Start the same line on every host, each with its own --task_index.
#
#   launch/worker.sh --cluster_spec=cluster_specs/two_hosts.json --task_index=0 --env=pong     on host-a
#   launch/worker.sh --cluster_spec=cluster_specs/two_hosts.json --task_index=2 --env=pong     on host-b
#   launch/worker.sh --help       every flag
#
# Without --cluster_spec the cluster is read from TF_CONFIG. The server listens on all interfaces without a password:
# start it only on a network you trust.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" worker --max_restarts=3 "$@"
