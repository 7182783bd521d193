#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Offline: check finds damage and never writes; inspect shows what lies where.
. "$(dirname "$0")/lib.sh"

start_node --drives 3 --drive-size 256M || bail 'the node starts'
make_volume v 64M mirror:2
head -c 64M /dev/urandom >"$TEST_TMP/image"
ok 'an image is stored' nbdcopy --flush "$TEST_TMP/image" "$(uri v)"
fails 'check refuses a running node' 2 . ashlar check "$NODE_DIR"
mapfile -t drives < <(ashlar drive list --json | json '"\n".join(x["path"] for x in d)')
stop_node

sums() { (cd "$NODE_DIR" && find . -type f -exec sha256sum {} + | sort); }
before=$(sums)
ok 'check is clean' ashlar check "$NODE_DIR"
ok 'inspect reads a pool' ashlar inspect "$NODE_DIR"
ok 'inspect reads one drive' ashlar inspect "${drives[0]}"

# first_block KIND: DRIVE OFFSET of a block of that kind, on whichever drive has one.
first_block() {
    local drive offset
    for drive in "${drives[@]}"; do
        offset=$(ashlar inspect "$NODE_DIR" --blocks "$drive" --json |
            json "next((b['offset'] for b in d if b['kind'] == '$1' and b['volume'] == 'v'), '')")
        [ -z "$offset" ] || { echo "$drive $offset" && return 0; }
    done
    return 1
}
for kind in data tree root log; do like "$(first_block $kind)" ' [1-9][0-9]*$' "a drive has $kind blocks"; done
is "$(sums)" "$before" 'and none of this wrote anything'

damage() { # KIND: the first block of that kind gets garbage
    local drive offset
    read -r drive offset < <(first_block "$1") || bail "no $1 block to damage"
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
done
fails 'check of a folder without a pool says so' 2 . ashlar check "$TEST_TMP"
done_testing
