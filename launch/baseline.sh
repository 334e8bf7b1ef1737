#!/usr/bin/env bash
# The same agent in one process, without a cluster: what the distributed runs are compared with.
#
#   launch/baseline.sh --env=pong --logdir=runs/baseline
#   launch/baseline.sh --help     every flag

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" baseline "$@"
