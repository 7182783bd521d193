#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The file system under the pool is filled to the last byte by something else.
. "$(dirname "$0")/lib.sh"

mounted=
host=$TEST_TMP/host
mkdir "$host"
truncate -s 512M "$TEST_TMP/host.img"
if mkfs.ext4 -q -m 0 "$TEST_TMP/host.img" && mount -o loop "$TEST_TMP/host.img" "$host" 2>/dev/null; then
    mounted=ext4
elif mount -t tmpfs -o size=512m none "$host" 2>/dev/null; then
    mounted=tmpfs
else
    skip_all 'nothing can be mounted here'
fi
unmount() {
    local rc=$?
    kill_node
    wait_for 10 umount "$host"
    return $rc
}
trap 'unmount; _cleanup' EXIT
NODE_DIR=$host/node
export ASHLAR_SOCK=$NODE_DIR/ashlar.sock
mkdir "$NODE_DIR"
echo "# on $mounted"

start_node --drives 2 --drive-size 256M || bail 'the node starts'
make_volume a 1G mirror:2
make_volume b 64M none
client() { "$PYTHON" - "$(uri a)"; }
put() {
    client <<'PY'
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
for i in range(32):
    h.pwrite(bytes([i + 1]) * (1 << 20), i << 20)
h.flush()
PY
}
ok 'a volume is written' put

# One byte at a time in the end: nothing is left, wherever the file system had kept some.
fill_host() {
    local size
    for size in 1M 64K 4K 512 1; do
        dd if=/dev/zero of="$host/hog.$size" bs="$size" conv=fsync 2>/dev/null
        sync -f "$host"
    done
    [ "$(df --output=avail -B1 "$host" | tail -n 1)" -lt 4096 ]
}
ok 'the file system is full' fill_host
trim() {
    client <<'PY'
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.trim(8 << 20, 0)
h.flush()
PY
}
ok 'trim works' trim
ok 'a volume is deleted' ashlar volume delete b --yes
ok 'and the host is filled again' fill_host
kill_node
ok 'the node starts after a kill' start_node
read_back() {
    client <<'PY'
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
for i in range(32):
    wanted = 0 if i < 8 else i + 1
    if h.pread(1 << 20, i << 20) != bytes([wanted]) * (1 << 20):
        sys.exit("MiB %d is wrong" % i)
PY
}
ok 'and everything is there' read_back
kill_node
ok 'and after another one' start_node
ok 'deleting works then, too' ashlar volume delete a --yes
rm -f "$host"/hog.*
ok 'with room again, the reserve is made again' wait_for 20 test -s "$NODE_DIR/coord.json.reserve"
ok 'and volumes are made and used' eval 'make_volume c 64M mirror:2 && qemu-img bench -f raw -t none -c 64 -d 4 -s 65536 -w "$(uri c)"'
stop_node
ok 'ashlar check is clean' ashlar check "$NODE_DIR"
done_testing
