# shellcheck shell=bash
# Sourced by every launch script: sets ROOT and VENV, and makes the virtual environment on first use.
#
# Needs nothing but Python 3.10 to 3.13 and pip. Installs the exact versions of requirements.lock into .venv/ of this
# checkout, and again when the lock changes, an earlier set-up was cut short or the environment's Python has gone; the log
# is .venv/setup.log.
#
#   ASYNC_DQN_PYTHON   the Python to make it with, when `python3` is not the one (remove .venv/ to change it later)

set -euo pipefail +C

ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
VENV=$ROOT/.venv

fail() {
  echo "async-dqn: $*" >&2
  exit 1
}

# Prints the first fitting Python's path, or ends with one line.
find_python() {
  local candidate candidates=(python3 python3.12 python3.11 python3.13 python3.10 python)
  local fits='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'
  if [[ -n ${ASYNC_DQN_PYTHON:-} ]]; then
    candidates=("$ASYNC_DQN_PYTHON")
  fi
  # Not the environment's own, where that is activated: starting over removes it.
  local PATH=":$PATH:"
  PATH=${PATH//":$VENV/bin:"/:}
  PATH=${PATH#:} PATH=${PATH%:}
  for candidate in "${candidates[@]}"; do
    if "$candidate" -c "$fits" >/dev/null 2>&1; then
      "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        fail "$candidate cannot make virtual environments: install its venv package (Debian: python3-venv)"
      command -v "$candidate"
      return
    fi
  done
  if [[ -n ${ASYNC_DQN_PYTHON:-} ]]; then
    fail "ASYNC_DQN_PYTHON=$ASYNC_DQN_PYTHON is not a Python 3.10 to 3.13 that runs"
  fi
  fail "no Python 3.10 to 3.13 found on PATH: install one, or name it with ASYNC_DQN_PYTHON=/path/to/python"
}

# What the environment was made from. It names ROOT because an environment does not survive being moved.
wanted_stamp() {
  echo "$ROOT $(cat "$ROOT/requirements.lock" "$ROOT/setup.py" | cksum)"
}

found_stamp() {
  cat "$VENV/setup.stamp" 2>/dev/null || true
}

IS_INSTALLED='import importlib.util as u, sys; sys.exit(u.find_spec("async_dqn") is None)' # found, not run: no mistake in it is mended by installing it again

# The stamp alone is not enough: a Python that was removed, or replaced by the next one, takes the packages with it.
is_ready() {
  [[ $(found_stamp) == "$(wanted_stamp)" ]] && "$VENV/bin/python" -I -c "$IS_INSTALLED" 2>/dev/null
}

install() {
  local python=$1
  set -x
  [[ -x $VENV/bin/python ]] || "$python" -m venv "$VENV" || return
  local pip=("$VENV/bin/python" -m pip --disable-pip-version-check --no-input install)
  PIP_USER=0 "${pip[@]}" -r "$ROOT/requirements.lock" || return
  PIP_USER=0 "${pip[@]}" --no-deps --no-build-isolation -e "$ROOT" || return
}

set_up() {
  local python stamp
  python=$(find_python)
  mkdir -p "$VENV"
  # Two scripts started at once: the second waits for the first, then finds its work done. The lock belongs to file
  # descriptor 9, so the kernel lets go of it however this process ends. A file system without locks does without.
  exec 9>"$VENV/setup.lock"
  "$python" -c '
import contextlib, fcntl
with contextlib.suppress(OSError):
    try:
        fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Waiting for another set-up of .venv to end ...", flush=True)
        fcntl.flock(9, fcntl.LOCK_EX)' >&2
  if ! is_ready; then
    stamp=$(found_stamp)
    # Whatever cannot be mended is started from scratch: a set-up cut short, an environment that moved with its folder,
    # lost its Python or has all but the program. Otherwise the lock has changed, or someone made .venv by hand.
    if [[ -n $stamp && $stamp != "$ROOT "* || $stamp == "$(wanted_stamp)" ]] ||
      ! "$VENV/bin/python" -c '' 2>/dev/null; then
      find "$VENV/" -mindepth 1 -maxdepth 1 ! -name setup.lock -exec rm -rf {} +
    fi
    echo "Setting up .venv (one time, about a minute) ..." >&2
    echo unfinished >"$VENV/setup.stamp"
    if ! (install "$python") >"$VENV/setup.log" 2>&1 </dev/null; then
      tail -n 15 "$VENV/setup.log" >&2
      fail "set-up failed; the whole log is $VENV/setup.log"
    fi
    wanted_stamp >"$VENV/setup.stamp"
  fi
  exec 9>&-
}

if ! is_ready; then
  set_up
fi
