#!/usr/bin/env bash
# Say where runs stand, while they go on and afterwards.
#
#   launch/status.sh runs/pong
#   launch/status.sh --help     every flag

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" status "$@"
