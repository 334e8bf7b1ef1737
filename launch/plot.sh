#!/usr/bin/env bash
# Draw the learning curves of any runs in one picture.
#
#   launch/plot.sh runs/pong-baseline runs/pong --x=time
#   launch/plot.sh --help     every flag

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" plot "$@"
