#!/usr/bin/env bash
# Play games with a trained network, without learning.
#
#   launch/evaluate.sh --logdir=runs/pong
#   launch/evaluate.sh --pretrained=pong --video=play.gif --overlay=q
#   launch/evaluate.sh --help     every flag

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" evaluate "$@"
