#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Locks of NFS clients: conflicts, waiting, the call that grants; they survive SIGKILL of the server.
. "$(dirname "$0")/lib.sh"

start_node --drives 3 --drive-size 1G --memory 256M || bail 'the node starts'
make_fs files
nlm() { "$PYTHON" "$LIB_ROOT/tests/nfs/nlm.py" "$NODE_NFS_PORT" /files "$1"; }
ok 'locks, conflicts, waiting' nlm first
kill_node
start_node || bail 'the node starts again after SIGKILL'
ok 'locks are still there' nlm second
is "$(ashlar fs check files --json | json 'd["problems"]')" 0 'fs check finds nothing'
stop_node
ok 'ashlar check is clean' ashlar check "$NODE_DIR"
done_testing
