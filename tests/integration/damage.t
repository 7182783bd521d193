#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Offline: check finds damage and never writes; inspect shows what lies where.
. "$(dirname "$0")/lib.sh"

start_node --drives 3 --drive-size 256M || bail 'the node starts'
make_volume v 64M mirror:2
head -c 64M /dev/urandom >"$TEST_TMP/image"
ok 'an image is stored' nbdcopy --flush "$TEST_TMP/image" "$(uri v)"
fails 'check refuses a running node' 2 . ashlar check "$NODE_DIR"
drive=$(ashlar drive list --json | json 'd[0]["path"]')
stop_node

sums() { (cd "$NODE_DIR" && find . -type f -exec sha256sum {} + | sort); }
before=$(sums)
ok 'check is clean' ashlar check "$NODE_DIR"
ok 'inspect reads a pool' ashlar inspect "$NODE_DIR"
ok 'inspect reads one drive' ashlar inspect "$drive"
blocks=$(ashlar inspect "$NODE_DIR" --blocks "$drive" --json)
for kind in data tree root log; do
    like "$(json "sum(b['length'] for b in d if b['kind'] == '$kind')" <<<"$blocks")" '^[1-9]' "the drive has $kind blocks"
done
is "$(sums)" "$before" 'and none of this wrote anything'

damage() { # KIND: the first block of that kind gets garbage
    local offset
    offset=$(json "next(b['offset'] for b in d if b['kind'] == '$1')" <<<"$blocks")
    head -c 4096 /dev/urandom | dd of="$drive" bs=4096 seek=$((offset / 4096)) conv=notrunc status=none
}
for kind in data tree; do
    damage $kind
    fails "check finds a damaged $kind block" 1 . ashlar check "$NODE_DIR"
    ok 'the node starts all the same' start_node
    ok 'scrub repairs it' ashlar scrub v
    ok 'the volume reads' nbdcopy "$(uri v)" "$TEST_TMP/back"
    ok 'and right' cmp "$TEST_TMP/image" "$TEST_TMP/back"
    rm -f "$TEST_TMP/back"
    stop_node
    ok "check is clean again after the damaged $kind block" ashlar check "$NODE_DIR"
    blocks=$(ashlar inspect "$NODE_DIR" --blocks "$drive" --json)
done
fails 'check of a folder without a pool says so' 2 . ashlar check "$TEST_TMP"
done_testing
