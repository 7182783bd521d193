#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A drive is lost while nobody reads: the first reads after it find the leases run out and the loss not recorded
# yet. Clients of a mirrored volume see nothing of it.
. "$(dirname "$0")/lib.sh"

start_node --drives 4 --drive-size 256M || bail 'the node starts'
make_volume v 64M mirror:2
head -c 64M /dev/urandom >"$TEST_TMP/image"
ok 'an image is stored' nbdcopy --flush "$TEST_TMP/image" "$(uri v)"

# The pause is longer than a lease (2 s): that is what it is about.
lose_and_read() { # PATH LOSSES
    "$PYTHON" - "$(uri v)" "$NODE_LOG" "$TEST_TMP/image" "$@" <<'PY'
import os, sys, time
import nbd
uri, log, image, path, losses = sys.argv[1:6]
h = nbd.NBD()
h.connect_uri(uri)
time.sleep(2.5)
os.truncate(path, 0)
limit = time.monotonic() + 60
while open(log).read().count('drive-lost') < int(losses):
    if time.monotonic() > limit:
        sys.exit('the loss was not noticed')
want = open(image, 'rb').read()
failed = 0
for offset in range(0, len(want), 65536):
    try:
        if h.pread(4096, offset) != want[offset:offset + 4096]:
            sys.exit('wrong bytes at %d' % offset)
    except nbd.Error as error:
        failed += 1
        last = error
sys.exit('%d reads failed, as: %s' % (failed, last) if failed else 0)
PY
}
for loss in 1 2 3; do
    victim=$(ashlar drive list --json | json "[x['path'] for x in d if x['state'] == 'ok'][$loss % 4]")
    ok "loss $loss: every read is answered, and right" lose_and_read "$victim" "$loss"
    ok 'status tells of it' grep -q "$victim is lost" <(ashlar status)
    ok 'a new drive at the same path' ashlar drive replace "$victim" --yes
    is "$(ashlar volume show v --json | json 'd["healthy"]')" true 'the volume is healthy again'
done
stop_node
is $? 0 'it stops in order'
done_testing
