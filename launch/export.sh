#!/usr/bin/env bash
# Hands a trained agent on: as a SavedModel for other programs, or as a small agent that evaluate plays.
#
#   launch/export.sh --logdir=runs/pong --output=pong-model
#   launch/export.sh --logdir=runs/pong --output=pong-agent --format=agent
#   launch/export.sh --help     every flag

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" export "$@"
