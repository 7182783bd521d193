#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ashlard --memory 256M serves a 1 TiB thin volume under random writes within 256 MiB plus 64 MiB.
. "$(dirname "$0")/lib.sh"

start_node --drives 4 --drive-size 2G --memory 256M || bail 'the node starts'
make_volume big 1T none
peak() { sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$NODE_PID/status"; }
ok 'random writes all over 1 TiB' fio --name=w --ioengine=nbd --uri="$(uri big)" --rw=randwrite --bs=4k --size=1T \
    --io_size=160M --iodepth=32 --randseed=3 --norandommap=1 --random_generator=tausworthe64 --output-format=terse
ok 'random reads all over it' fio --name=r --ioengine=nbd --uri="$(uri big)" --rw=randread --bs=4k --size=1T \
    --io_size=80M --iodepth=32 --randseed=3 --norandommap=1 --random_generator=tausworthe64 --output-format=terse
echo "# peak: $(peak) KiB"
if [ "$ASHLAR_SLOW" = 1 ]; then
    ok 'the peak of its memory is within the budget' test "$(peak)" -lt $(((256 + 64) * 1024))
fi
kill_node
started=$(date +%s%N)
ok 'it starts again after SIGKILL' start_node
took=$((($(date +%s%N) - started) / 1000000))
ok "within 5 s (it took $took ms)" test $took -lt $((5000 * ASHLAR_SLOW))
stop_node
ok 'ashlar check is clean' ashlar check "$NODE_DIR"
done_testing
