#!/usr/bin/env bash
# A whole cluster on this machine: parameter servers and workers, started, watched and ended together.
#
#   launch/local.sh --env=pong --num_ps=1 --num_workers=2 --logdir=runs/pong
#   launch/local.sh --help        every flag

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" local "$@"
