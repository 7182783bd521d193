#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Connections of NFS clients that rest: they stay, they cost little, and where their number has its limit (by the
# budget, by descriptors) a newcomer is served all the same.
. "$(dirname "$0")/lib.sh"

IDLE=$LIB_ROOT/tests/nfs/idle.py
start_node --drives 2 --drive-size 1G --memory 256M || bail 'the node starts'
make_fs files
seen() { json "$1" <"$TEST_TMP/idle.json"; }
idle() { "$PYTHON" "$IDLE" "$NODE_NFS_PORT" /files "$@" >"$TEST_TMP/idle.json"; }

# ---- below the limit ----
ok '2000 connections are opened' idle 2000
diag <"$TEST_TMP/idle.json"
is "$(seen 'd["alive"]')" 2000 'all of them are there after newcomers came and went'
is "$(seen 'd["served"]')" 20 'who were served'
if [ "$ASHLAR_SLOW" = 1 ]; then
    ok 'one that rests costs less than 20 KiB' test "$(seen 'int(d["kib_each"])')" -lt 20
fi

# ---- the limit of the budget: 64 MiB / 8 / 4 KiB = 2048 ----
stop_node
start_node --drives 2 --drive-size 1G --memory 64M || bail 'the node starts with a small budget'
ok '2300 connections are opened' idle 2300
diag <"$TEST_TMP/idle.json"
ok 'about as many as the budget is for are left' test "$(seen 'd["alive"]')" -ge 2000 -a "$(seen 'd["alive"]')" -le 2064
is "$(seen 'd["served"]')" 20 'newcomers are served'

# ---- the limit of descriptors: 3/4 of 400 ----
stop_node
start_few() { # in a subshell
    ulimit -n 400
    exec "$ASHLAR_BUILD/ashlard" --dir "$NODE_DIR" --nbd-port "$NODE_PORT" --nfs-port "$NODE_NFS_PORT" --memory 64M \
        >>"$NODE_LOG" 2>&1 </dev/null
}
start_few &
# shellcheck disable=SC2034 # lib.sh ends it
NODE_PID=$!
wait_for 10 node_answers || bail 'the node starts with few descriptors'
ok '500 connections are opened' idle 500
diag <"$TEST_TMP/idle.json"
ok 'no more are left than descriptors are for' test "$(seen 'd["alive"]')" -ge 250 -a "$(seen 'd["alive"]')" -le 316
is "$(seen 'd["served"]')" 20 'newcomers are served'
ok 'drives and the control socket have theirs' ashlar volume create more --size 64M --protect none
stop_node
ok 'ashlar check is clean' ashlar check "$NODE_DIR"
done_testing
