#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Nothing is overwritten, ignored or left out without a word.
. "$(dirname "$0")/lib.sh"

truncate -s 300M "$TEST_TMP/existing"
start_node --drive "$TEST_TMP/existing" --drive "$TEST_TMP/made" --drive-size 200M || bail 'the node starts'
like "$(cat "$NODE_LOG")" "drive-size.*$TEST_TMP/existing exists" 'a size that an existing file does not take is told'
is "$(stat -c %s "$TEST_TMP/made")" $((200 << 20)) 'a file that is made has it'
is "$(ashlar status --json | json 'd["capacity"]["used_bytes"]')" 0 'an empty pool has nothing used'
is "$(ashlar status --json | json 'd["capacity"]["used_bytes"] == sum(x["used_bytes"] for x in d["drives"])')" true \
    'as its drives say'
make_volume v 32M none
head -c 32M /dev/urandom >"$TEST_TMP/image"
ok 'an image is stored' nbdcopy --flush "$TEST_TMP/image" "$(uri v)"
ok 'scrub of a whole volume succeeds' ashlar scrub v
stop_node
start_node --drive-size 1G
like "$(tail -n 5 "$NODE_LOG")" '--drive-size is for the first start' 'and later it is told that a pool exists'

# A scrub that finds losses fails.
read -r drive offset < <("$PYTHON" - "$TEST_TMP/image" "$TEST_TMP/existing" "$TEST_TMP/made" <<'PY'
import sys
wanted = open(sys.argv[1], 'rb').read()[1 << 20:(1 << 20) + 4096]
for path in sys.argv[2:]:
    at = open(path, 'rb').read().find(wanted)
    if at >= 0:
        print(path, at)
PY
)
dd if=/dev/urandom of="$drive" bs=4096 count=1 seek=$((offset / 4096)) conv=notrunc status=none
fails 'scrub fails when blocks are lost' 1 '1 blocks lost' ashlar scrub v

# What was kept once is not overwritten by the next one.
echo 'of an earlier replacement' >"$TEST_TMP/made.replaced"
ashlar volume delete v --yes >/dev/null
stop_node
truncate -s 0 "$TEST_TMP/made" && truncate -s 200M "$TEST_TMP/made"
start_node
ok 'the damaged drive is replaced where it was' ashlar drive replace "$TEST_TMP/made" --yes
is "$(cat "$TEST_TMP/made.replaced")" 'of an earlier replacement' 'what was kept before is still there'
ok 'and what is kept now is beside it' test -s "$TEST_TMP/made.replaced.2"

# A device is not taken without being asked for.
truncate -s 128M "$TEST_TMP/device"
loop=$(losetup --find --show "$TEST_TMP/device" 2>/dev/null)
if [ -n "$loop" ]; then
    fails 'a device without a signature is not overwritten just so' 1 'overwritten' ashlar drive add "$loop"
    is "$(tr -d '\0' <"$TEST_TMP/device" | wc -c)" 0 'nothing was written to it'
    ok 'with --yes it is taken' ashlar drive add "$loop" --yes
    stop_node
    losetup --detach "$loop"
else
    echo '# no loop device here: devices are left out'
fi
done_testing
