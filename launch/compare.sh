#!/usr/bin/env bash
# Train a single process and clusters on the same work, in turn, and report on them.
#
#   launch/compare.sh --quick                    CartPole, minutes
#   launch/compare.sh --logdir=runs/compare      Pong, hours; the same line again goes on where it was left
#   launch/compare.sh --study=sharing            CartPole in many ways, to runs/CartPole-v1-sharing-TIME
#   launch/compare.sh --help     every flag

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

exec "$VENV/bin/async-dqn" compare "$@"
