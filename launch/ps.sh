#!/usr/bin/env bash
# One parameter server of a cluster. Ends by itself when the last worker has finished.
#
#   launch/ps.sh --cluster_spec=cluster_specs/two_hosts.json --task_index=0      on host-a
#   launch/ps.sh --help           every flag
#
# Without --cluster_spec the cluster is read from TF_CONFIG. The server listens on all interfaces without a password:
# start it only on a network you trust.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" ps --max_restarts=3 "$@"
