#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A node starts, stops, is killed and comes back with everything; it says why when it cannot start.
. "$(dirname "$0")/lib.sh"

pattern() { "$PYTHON" - "$@" <<'EOF'
import random, sys
import nbd
uri, action, seed = sys.argv[1:4]
h = nbd.NBD()
h.connect_uri(uri)
dice = random.Random(int(seed))
for i in range(64):
    offset = dice.randrange(0, 4096) * 4096
    data = dice.randbytes(4096 * dice.randrange(1, 16))
    if action == "write":
        h.pwrite(data, offset)
if action == "write":
    sys.exit(0)
# The last write of each block counts.
dice = random.Random(int(seed))
want = bytearray(h.get_size())
for i in range(64):
    offset = dice.randrange(0, 4096) * 4096
    data = dice.randbytes(4096 * dice.randrange(1, 16))
    want[offset:offset + len(data)] = data
have = b"".join(h.pread(1 << 20, o) for o in range(0, h.get_size(), 1 << 20))
sys.exit(0 if have == bytes(want) else 1)
EOF
}

start_node --drives 3 --drive-size 512M || bail 'the node starts'
like "$(ashlar status)" . 'status answers'
for name in plain twofold; do
    make_volume $name 32M "$([ $name = plain ] && echo none || echo mirror:2)"
    ok "$name takes writes" pattern "$(uri $name)" write 1
done
stop_node
is $? 0 'SIGTERM stops it in order'
ok 'ashlar check is clean after it' ashlar check "$NODE_DIR"
ok 'it starts again' start_node
for name in plain twofold; do ok "$name is there after the restart" pattern "$(uri $name)" verify 1; done
kill_node
ok 'ashlar check is clean after SIGKILL' ashlar check "$NODE_DIR"
ok 'it starts again after SIGKILL' start_node
for name in plain twofold; do ok "$name is there after the kill" pattern "$(uri $name)" verify 1; done

second() { timeout 20 "$ASHLAR_BUILD/ashlard" "$@"; }
fails 'a second node on the same folder is refused, with the reason' any '([Ii]n use|lock|another|running)' \
    second --dir "$NODE_DIR" --nbd-port "$(free_port)" --nfs-port 0
mkdir "$TEST_TMP/other"
fails 'a busy port is named' any "($NODE_PORT|port|in use)" \
    second --dir "$TEST_TMP/other" --nbd-port "$NODE_PORT" --drives 1 --drive-size 256M
ok 'and the first node goes on' pattern "$(uri plain)" verify 1

ok 'grow makes it larger' ashlar volume grow plain --size 48M
is "$(nbdinfo --size "$(uri plain)")" 50331648 'a reconnecting client sees the new size'
fails 'growing to less is refused' any . ashlar volume grow plain --size 16M
fails 'deleting without --yes is refused' any . ashlar volume delete plain
ok 'and the volume is still there' nbdinfo --size "$(uri plain)"
ok 'unexport takes it away from clients' ashlar unexport plain
fails 'and they see it no more' any . nbdinfo --size "$(uri plain)"
ok 'delete removes it' ashlar volume delete plain --yes
like "$(ashlar volume list --json | json '[v["name"] for v in d]')" '^\["twofold"\]$' 'only the other one is left'
stop_node
ok 'ashlar check is clean at the end' ashlar check "$NODE_DIR"
done_testing
