#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A node tells rpcbind where NFS is, and leaves alone what others told it. In a network and a /run of its own.
if [ -z "${ASHLAR_RPCBIND_INSIDE:-}" ] && unshare --mount --net true 2>/dev/null; then
    exec unshare --mount --net env ASHLAR_RPCBIND_INSIDE=yes "$0" "$@"
fi
. "$(dirname "$0")/lib.sh"

[ -n "${ASHLAR_RPCBIND_INSIDE:-}" ] || skip_all 'no network of its own can be made: not root?'
command -v rpcbind >/dev/null || skip_all 'rpcbind is not installed'
{ mount -t tmpfs none /run && ip link set lo up; } || skip_all 'no /run of its own can be made'

rpcbind -f >"$TEST_TMP/rpcbind.log" 2>&1 &
EXTRA_PIDS+=($!)
wait_for 10 rpcinfo -p 127.0.0.1 || bail 'rpcbind answers'

# PROGRAM VERSION PROTOCOL: the port, or nothing.
port_of() { rpcinfo -p 127.0.0.1 | awk -v p="$1" -v v="$2" -v n="$3" '$1 == p && $2 == v && $3 == n { print $4 }'; }

start_node --drives 1 --drive-size 1G --memory 128M || bail 'the node starts'
first=$NODE_NFS_PORT
is "$(port_of 100003 3 tcp)" "$first" 'NFS is where the node says'
is "$(port_of 100005 3 tcp)" "$first" 'so is MOUNT'
is "$(port_of 100021 4 tcp)" "$first" 'so is the lock manager'
ok 'NFS answers where rpcbind sends the client' rpcinfo -T tcp 127.0.0.1 100003 3
is "$(port_of 100003 4 tcp)" '' 'version 4 is not promised'

kill_node
NODE_NFS_PORT=$(free_port)
start_node || bail 'the node starts again, at another port'
is "$(port_of 100003 3 tcp)" "$NODE_NFS_PORT" 'what a run that was killed left is replaced'
is "$(port_of 100024 1 udp)" "$NODE_NFS_PORT" 'of UDP, too'

"$ASHLAR_BUILD/ashlard" --dir "$TEST_TMP/other" --nbd-port 0 --nfs-port 0 --drives 1 --drive-size 1G --memory 128M \
    >"$TEST_TMP/other.log" 2>&1 </dev/null &
other=$!
EXTRA_PIDS+=("$other")
wait_for 20 grep -q 'is ready' "$TEST_TMP/other.log" || bail 'another node starts'
is "$(port_of 100003 3 tcp)" "$NODE_NFS_PORT" 'a second node does not take the place of the first'
kill -TERM "$other"
wait_for 30 _is_gone "$other"
is "$(port_of 100003 3 tcp)" "$NODE_NFS_PORT" 'nor does it take it away when it stops'

stop_node
is $? 0 'the node stops in order'
is "$(port_of 100003 3 tcp)$(port_of 100005 3 tcp)$(port_of 100024 1 udp)" '' 'and rpcbind knows nothing of it any more'

fails 'a port mapper beside rpcbind is refused' any 'leave --portmap out' \
    timeout 30 "$ASHLAR_BUILD/ashlard" --dir "$NODE_DIR" --nbd-port 0 --nfs-port 0 --portmap
kill "${EXTRA_PIDS[0]}"
wait_for 10 _is_gone "${EXTRA_PIDS[0]}"
start_node --portmap || bail 'the node starts with --portmap and no rpcbind'
is "$(port_of 100003 3 tcp)" "$NODE_NFS_PORT" 'its own port mapper tells the port'
ok 'by UDP as well' rpcinfo -T udp 127.0.0.1 100000 2
done_testing
