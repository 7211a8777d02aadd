# Makes .venv from the pinned requirements, once; sourced by scripts/demo, scripts/test and scripts/bench.
#
#   brigade_env [test|plot]     sets PYTHON to the environment's interpreter; what that extra needs is installed too
#
# Idempotent: a stamp holds the hash of everything the environment was made from, so a second run costs milliseconds.
# Variables: BRIGADE_PYTHON (interpreter to use), BRIGADE_BITTENSOR_SDIST (archive for the local chain, if offline).
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
VENV="$ROOT/.venv"

# Version and hash of the archive stand in the module that reads it, and nowhere else.
pinned() { sed -n "s/^$1 = \"\([0-9a-f.]*\)\"\$/\1/p" "$ROOT/common/chain/local/metadata.py"; }
SDIST_VERSION="$(pinned SDIST_VERSION)"
SDIST_SHA256="$(pinned SDIST_SHA256)"
SDIST_NAME="bittensor-$SDIST_VERSION.tar.gz"

fail() {
    echo "brigade: $1" >&2
    exit 3
}

check_platform() {
    local system machine
    system="$(uname -s)" machine="$(uname -m)"
    [ "$system" = Linux ] || fail "Brigade runs on Linux; $system is not supported: use a Linux machine, container or WSL 2"
    case "$machine" in
        x86_64 | aarch64) ;;
        *) fail "Brigade runs on x86_64 and aarch64, not on $machine" ;;
    esac
}

find_python() {
    local name
    for name in ${BRIGADE_PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; install it, or name it in BRIGADE_PYTHON"
}

make_venv() {
    local python
    [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import pip' 2>/dev/null && return
    python="$(find_python)" || exit 3
    echo "making $VENV with $("$python" --version)" >&2
    "$python" -m venv "$VENV" >/dev/null 2>&1 ||
        fail "$python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"
}

install_packages() {
    local what="$1" stamp="$VENV/brigade-$1.stamp" now
    now="$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" "$ROOT/requirements-seaweed.txt" | sha256sum)"
    now="$now $("$VENV/bin/python" --version) $ROOT"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$now" ] && return
    echo "installing the requirements into $VENV (a few minutes the first time)" >&2
    local target="$ROOT"
    [ "$what" = run ] || target="$ROOT[$what]"
    pip_install --constraint "$ROOT/constraints.txt" --editable "$target"
    pip_install --require-hashes --no-deps --requirement "$ROOT/requirements-seaweed.txt"
    echo "$now" >"$stamp"
}

pip_install() {
    "$VENV/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check --no-input "$@" >&2 ||
        fail "pip could not install the requirements; the lines above say why"
}

# The local chain serves the real runtime's metadata, which only the SDK's source archive holds.
fetch_sdist() {
    [ -n "${BRIGADE_BITTENSOR_SDIST:-}" ] && return
    local cache="$VENV/share/brigade"
    local file="$cache/$SDIST_NAME"
    if ! good_sdist "$file"; then
        mkdir -p "$cache"
        "$VENV/bin/python" -m pip download --quiet --disable-pip-version-check --no-input --no-deps \
            --no-binary bittensor --dest "$cache" "bittensor==$SDIST_VERSION" >&2 && good_sdist "$file" ||
            fail "the source archive of bittensor $SDIST_VERSION could not be fetched; get $SDIST_NAME elsewhere and name it in BRIGADE_BITTENSOR_SDIST"
    fi
    export BRIGADE_BITTENSOR_SDIST="$file"
}

good_sdist() {
    [ -f "$1" ] && echo "$SDIST_SHA256  $1" | sha256sum --check --status
}

brigade_env() {
    check_platform
    # Of scripts that are started at once one installs, and the others wait for it: pip can't share a folder.
    mkdir -p "$VENV"
    exec 9>"$VENV/lock"
    ! command -v flock >/dev/null || flock 9
    make_venv
    install_packages "${1:-run}"
    fetch_sdist
    exec 9>&-
    # shellcheck disable=SC2034
    PYTHON="$VENV/bin/python"
}
