#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Space: thin volumes, TRIM, a full pool that still takes trim and delete.
. "$(dirname "$0")/lib.sh"

start_node --drives 2 --drive-size 256M || bail 'the node starts'
make_volume thin 1T none
is "$(nbdinfo --size "$(uri thin)")" 1099511627776 'a volume may be larger than the pool'

client() { "$PYTHON" - "$(uri thin)" "$@"; }
used() { ashlar volume show thin --json | json 'd["used_bytes"]'; }
fill() {
    client <<'EOF'
import errno, os, sys
import nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
written = 0
try:
    while written < 1 << 30:
        h.pwrite(os.urandom(1 << 20), written)
        written += 1 << 20
except nbd.Error as error:
    if error.errnum != errno.ENOSPC:
        sys.exit("not ENOSPC: %s" % error)
    print(written)
    sys.exit(0)
sys.exit("no ENOSPC after 1 GiB")
EOF
}
before=$(used)
written=$(fill 2>"$TEST_TMP/fill.err") || written="none: $(cat "$TEST_TMP/fill.err")"
like "$written" '^[0-9]+$' 'filling the pool ends with ENOSPC'
like "$((${written:-0} >> 20))" '^(2[5-9][0-9]|[34][0-9][0-9])$' 'after at least half of the pool, at most all of it'
full=$(used)

trim() {
    client "$written" <<'EOF'
import sys
import nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
for offset in range(0, int(sys.argv[2]), 32 << 20):
    h.trim(min(32 << 20, int(sys.argv[2]) - offset), offset)
h.flush()
EOF
}
ok 'trim works on a full pool' trim
freed() { [ "$(used)" -lt $((full / 4)) ]; }
ok 'and gives the space back' wait_for 30 freed
echo "# used: $before at first, $full when full, $(used) after trim"
again=$(fill 2>&1)
like "$again" '^[0-9]+$' 'the space can be filled again'
fails 'deleting asks first' any . ashlar volume delete thin
ok 'delete works on a full pool' ashlar volume delete thin --yes
make_volume fresh 128M none
ok 'and its space is there for another volume' \
    qemu-img bench -f raw -t none -c 128 -d 4 -s 1048576 -S 1048576 -w "$(uri fresh)"
stop_node
ok 'ashlar check is clean' ashlar check "$NODE_DIR"
done_testing
