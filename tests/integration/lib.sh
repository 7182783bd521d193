# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For the TAP tests of this folder: a node in a temporary folder, and TAP itself. Source it first:
#
#   . "$(dirname "$0")/lib.sh"
#   start_node --drives 3 --drive-size 1G
#   ok 'a volume is made' ashlar volume create v --size 64M --protect mirror:2
#   done_testing
#
# ASHLAR_BUILD is the folder with ashlard and ashlar (else build/ of this tree). ASHLAR_SLOW multiplies every
# waiting time, for sanitizer builds. Nothing here sleeps for a fixed time to let something happen.
set -uo pipefail

LIB_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ASHLAR_BUILD=${ASHLAR_BUILD:-$LIB_ROOT/build}
ASHLAR_SLOW=${ASHLAR_SLOW:-1}
PYTHON=/usr/bin/python3 # the one that Debian's python3-libnbd belongs to

# ---- TAP ----

tap_count=0
tap_failed=0
tap_done=no

_tap() { # 0|1 DESCRIPTION
    tap_count=$((tap_count + 1))
    if [ "$1" = 0 ]; then
        echo "ok $tap_count - $2"
    else
        tap_failed=$((tap_failed + 1))
        echo "not ok $tap_count - $2"
    fi
    return "$1"
}

diag() { sed 's/^/# /'; }

# ok DESCRIPTION COMMAND…: the command succeeds.
ok() {
    local description=$1 rc=0
    shift
    # Not in a subshell: start_node and its like must leave their process id behind.
    "$@" >"$TEST_TMP/ok.out" 2>&1 </dev/null || rc=$?
    _tap $((rc != 0)) "$description" ||
        { cat "$TEST_TMP/ok.out" && printf 'exit %s: %s\n' "$rc" "$*"; } | tail -n 40 | diag
}

# fails DESCRIPTION CODE WORDS COMMAND…: the command fails with this exit code (any: any but 0) and says words
# that match the extended regular expression.
fails() {
    local description=$1 code=$2 words=$3 out rc=0
    shift 3
    out=$("$@" 2>&1 </dev/null) || rc=$?
    if [ "$rc" != 0 ] && { [ "$code" = any ] || [ "$rc" = "$code" ]; } && grep -qE -e "$words" <<<"$out"; then
        _tap 0 "$description"
    else
        _tap 1 "$description"
        printf 'exit %s, wanted %s and /%s/, of: %s\n%s\n' "$rc" "$code" "$words" "$*" "$out" | tail -n 40 | diag
    fi
}

# is GOT WANTED DESCRIPTION
is() {
    local same=1
    [ "$1" = "$2" ] && same=0
    _tap $same "$3" || printf 'got:    %s\nwanted: %s\n' "$1" "$2" | diag
}

# like GOT REGEX DESCRIPTION (extended regular expression, anywhere in the text)
like() {
    local found=1
    grep -qE -e "$2" <<<"$1" && found=0
    _tap $found "$3" || printf 'got:    %s\nwanted: /%s/\n' "$1" "$2" | diag
}

done_testing() {
    echo "1..$tap_count"
    tap_done=yes
    [ "$tap_failed" = 0 ]
}

# skip_all REASON: for what this machine cannot do.
skip_all() {
    echo "1..0 # SKIP $1"
    tap_done=yes
    exit 0
}

# ---- Waiting ----

# wait_for SECONDS COMMAND…: polls until it succeeds; fails when the time is over.
wait_for() {
    local limit=$((SECONDS + $1 * ASHLAR_SLOW + 1))
    shift
    until "$@" >/dev/null 2>&1 </dev/null; do
        [ $SECONDS -lt $limit ] || return 1
        sleep 0.05
    done
}

# json EXPRESSION: evaluates a Python expression over the JSON on standard input, called d.
json() {
    "$PYTHON" -c '
import json, sys
d = json.load(sys.stdin)
value = eval(sys.argv[1])
print(json.dumps(value) if isinstance(value, (dict, list, bool)) or value is None else value)' "$1"
}

# Below the range that the kernel gives to outgoing connections, so that none of those has it when a node that was
# stopped comes back.
free_port() {
    "$PYTHON" -c '
import random, socket
while True:
    port = random.randrange(20000, 32000)
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break'
}

# ---- A node ----

TEST_TMP=$(mktemp -d "${TMPDIR:-/var/tmp}/ashlar-test.XXXXXX")
NODE_DIR=$TEST_TMP/node
NODE_LOG=$TEST_TMP/ashlard.log
NODE_PORT=
NODE_NFS_PORT=
NODE_PID=
NODE_ARGS=()
EXTRA_PIDS=() # of a test's own background processes; ended with it
export ASHLAR_SOCK=$NODE_DIR/ashlar.sock
mkdir -p "$NODE_DIR"

ashlar() { "$ASHLAR_BUILD/ashlar" "$@"; }

node_answers() { "$ASHLAR_BUILD/ashlar" -s "$ASHLAR_SOCK" status; }

node_runs() { [ -n "$NODE_PID" ] && kill -0 "$NODE_PID" 2>/dev/null; }

# start_node [OPTIONS of ashlard…]: without options, those of the last time. Waits until it answers.
# shellcheck disable=SC2120 # the tests give the arguments
start_node() {
    local limit
    if [ $# -gt 0 ]; then NODE_ARGS=("$@"); fi
    [ -n "$NODE_PORT" ] || NODE_PORT=$(free_port)
    [ -n "$NODE_NFS_PORT" ] || NODE_NFS_PORT=$(free_port)
    "$ASHLAR_BUILD/ashlard" --dir "$NODE_DIR" --nbd-port "$NODE_PORT" --nfs-port "$NODE_NFS_PORT" "${NODE_ARGS[@]}" >>"$NODE_LOG" 2>&1 </dev/null &
    NODE_PID=$!
    limit=$((SECONDS + 10 * ASHLAR_SLOW + 1))
    until node_answers >/dev/null 2>&1; do
        if ! node_runs || [ $SECONDS -ge $limit ]; then
            tail -n 20 "$NODE_LOG" | diag
            node_answers 2>&1 | tail -n 20 | diag
            echo "# ashlard ${NODE_ARGS[*]} did not start, or does not answer"
            return 1
        fi
        sleep 0.05
    done
}

# Orderly: SIGTERM. Returns ashlard's exit code, or 1 after 60 s.
stop_node() {
    local rc=0
    [ -n "$NODE_PID" ] || return 0
    kill -TERM "$NODE_PID" 2>/dev/null
    if ! wait_for 60 _is_gone "$NODE_PID"; then
        echo "# ashlard does not stop"
        kill -KILL "$NODE_PID" 2>/dev/null
        rc=1
    fi
    wait "$NODE_PID" 2>/dev/null || rc=$?
    NODE_PID=
    return $rc
}

# A child that ended and was not waited for is a zombie, and as good as gone.
_is_gone() {
    local state
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)
    [ -z "$state" ] || [ "$state" = Z ]
}

kill_node() {
    [ -n "$NODE_PID" ] || return 0
    kill -KILL "$NODE_PID" 2>/dev/null
    wait "$NODE_PID" 2>/dev/null
    NODE_PID=
    return 0
}

restart_node() { stop_node && start_node; }

# uri VOLUME [unix|tcp]
uri() {
    case ${2:-unix} in
    unix) echo "nbd+unix:///$1?socket=$NODE_DIR/nbd.sock" ;;
    tcp) echo "nbd://127.0.0.1:$NODE_PORT/$1" ;;
    esac
}

# make_volume NAME SIZE PROTECTION: creates and exports; the test ends if it cannot.
make_volume() {
    ashlar volume create "$1" --size "$2" --protect "$3" >"$TEST_TMP/make.log" 2>&1 &&
        ashlar export "$1" --nbd >>"$TEST_TMP/make.log" 2>&1 && return 0
    diag <"$TEST_TMP/make.log"
    bail "volume $1 could not be made"
}

# nfs_url PATH [OPTION=VALUE…]: as root, who is root there too where the export lets him.
nfs_url() {
    local path=$1 options="version=3&nfsport=$NODE_NFS_PORT&mountport=$NODE_NFS_PORT&uid=0&gid=0"
    shift
    for option; do options+="&$option"; done
    echo "nfs://127.0.0.1$path?$options"
}

# make_fs NAME [OPTIONS of fs create…]: creates, and exports it over NFS with root as root.
make_fs() {
    ashlar fs create "$@" >"$TEST_TMP/make.log" 2>&1 &&
        ashlar export "$1" --nfs --no-root-squash >>"$TEST_TMP/make.log" 2>&1 && return 0
    diag <"$TEST_TMP/make.log"
    bail "file system $1 could not be made"
}

# For what a test cannot go on without.
bail() {
    _tap 1 "$1"
    exit 1
}

_cleanup() {
    local rc=$? pid
    trap - EXIT
    for pid in "${EXTRA_PIDS[@]}"; do
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    kill_node
    if [ "$tap_done" != yes ]; then echo "1..$tap_count"; fi
    if [ "$tap_failed" != 0 ] && [ -s "$NODE_LOG" ]; then
        echo "# the end of ashlard's log:"
        tail -n 25 "$NODE_LOG" | diag
    fi
    if [ "$tap_done" != yes ] && [ $rc = 0 ]; then rc=1; fi
    if [ "$tap_failed" = 0 ] || [ -z "${ASHLAR_KEEP:-}" ]; then rm -rf "$TEST_TMP"; else echo "# kept: $TEST_TMP"; fi
    exit $rc
}
trap _cleanup EXIT
trap 'exit 130' INT TERM
