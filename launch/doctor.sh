#!/usr/bin/env bash
# Whether this machine can run what is asked of it: packages, TensorFlow, GPUs, memory, disk, ports, hosts.
#
#   launch/doctor.sh --env=pong --num_workers=4
#   launch/doctor.sh --cluster_spec=cluster_specs/two_hosts.json     on each host, before the cluster is started
#   launch/doctor.sh --help       every flag

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" doctor "$@"
