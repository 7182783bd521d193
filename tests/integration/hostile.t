#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A client that vanishes, sends garbage or never reads its replies hurts nobody else.
. "$(dirname "$0")/lib.sh"

start_node --drives 2 --drive-size 512M --memory 256M || bail 'the node starts'
make_volume v 64M mirror:2
other_works() { timeout 20 nbdinfo --size "$(uri v)" && qemu-img bench -f raw -t none -c 200 -d 8 -s 4096 -w "$(uri v)"; }
head -c 64M /dev/urandom >"$TEST_TMP/image"
ok 'the volume is full of data' nbdcopy --flush "$TEST_TMP/image" "$(uri v)"
ok 'a good client works' other_works

send_garbage() {
    "$PYTHON" - "$NODE_PORT" "$NODE_DIR" <<'EOF'
import random, socket, sys
dice = random.Random(1)
for i in range(200):
    if i % 2:
        s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    else:
        s = socket.socket(socket.AF_UNIX)
        s.connect(sys.argv[2] + ("/nbd.sock" if i % 4 else "/ashlar.sock"))
    s.settimeout(0.1)  # the control socket greets nobody
    try:
        if dice.random() < 0.5:
            s.recv(dice.randrange(1, 20))
        if dice.random() < 0.5:
            s.sendall(b"\0\0\0\3IHAVEOPT" + dice.randbytes(dice.randrange(0, 40)))
        s.sendall(dice.randbytes(dice.choice((1, 7, 28, 4096, 100000))))
    except OSError:
        pass
    s.close()
EOF
}
ok 'garbage is sent on all sockets' send_garbage
ok 'and the good client still works' other_works

vanish() {
    "$PYTHON" - "$(uri v tcp)" <<'EOF'
import os, sys
import nbd
for i in range(20):
    h = nbd.NBD()
    h.connect_uri(sys.argv[1])
    for k in range(64):
        h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(os.urandom(65536))), k * 65536)
    if i == 19:
        os._exit(0)
EOF
}
ok 'clients vanish with writes under way' vanish
ok 'and the good client still works' other_works

cat >"$TEST_TMP/deaf.py" <<'EOF'
import socket, struct, sys
conns = []
for i in range(8):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    s.recv(18)
    s.sendall(struct.pack(">I", 3))
    s.sendall(b"IHAVEOPT" + struct.pack(">II", 7, 4 + 1 + 2) + struct.pack(">I", 1) + b"v" + struct.pack(">H", 0))
    s.settimeout(5)
    got = b""
    while b"\0\3\xe8\x89\x04\x55\x65\xa9\0\0\0\7\0\0\0\1" not in got and len(got) < 4096:
        more = s.recv(4096)
        if not more:
            sys.exit("the handshake failed: %r" % got)
        got += more
    s.settimeout(0.5)
    conns.append(s)
    try:
        for k in range(2000):
            s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, k, 0, 1 << 20))
    except OSError:
        pass
print("deaf", flush=True)
sys.stdin.read()
EOF
mkfifo "$TEST_TMP/hold"
"$PYTHON" "$TEST_TMP/deaf.py" "$NODE_PORT" <"$TEST_TMP/hold" >"$TEST_TMP/deaf.out" 2>&1 &
EXTRA_PIDS+=($!)
exec 9>"$TEST_TMP/hold"
ok 'eight clients ask for 16 GiB and read nothing' wait_for 60 grep -q deaf "$TEST_TMP/deaf.out"
ok 'and the good client still works' other_works
resident() { sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$NODE_PID/status"; }
if [ "$ASHLAR_SLOW" = 1 ]; then
    ok 'memory stays within its budget' test "$(resident)" -lt $(((256 + 64) * 1024))
fi
echo "# resident: $(resident) KiB"
exec 9>&-
stop_node
is $? 0 'it stops in order in spite of them'
ok 'ashlar check is clean' ashlar check "$NODE_DIR"
done_testing
