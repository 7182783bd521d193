#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# File systems over NFS: what the commands do, who may see what, a tree copied while the server is killed.
. "$(dirname "$0")/lib.sh"

NFSTREE=$ASHLAR_BUILD/tests/nfs/nfstree
[ -x "$NFSTREE" ] || skip_all 'libnfs is not installed'

start_node --drives 3 --drive-size 1G --memory 256M || bail 'the node starts'

# ---- commands ----
ok 'a file system is created' ashlar fs create files
is "$(ashlar fs show files --json | json '[d["kind"], d["protection"], d["state"], d["healthy"], d["inodes"]]')" \
    '["fs", "mirror:2", "open", true, 1]' 'two copies without being asked'
fails 'again: it exists' 1 'exists' ashlar fs create files
fails 'it is no block device' 1 'file system' ashlar export files --nbd
ok 'a block volume is made' ashlar volume create blocks --size 64M --protect none
fails 'and is no file system' 1 'block volume' ashlar export blocks --nfs
fails 'nor shown as one' 1 'block volume' ashlar fs show blocks
is "$(ashlar fs list --json | json '[v["name"] for v in d]')" '["files"]' 'fs list has file systems only'
fails 'a directory that is not there is not exported' 1 'no such file' ashlar export files --nfs --path /nothing
fails 'a client that nobody knows' 1 'not known' ashlar export files --nfs --clients no.such.host.invalid
fails 'a squash too many' 2 'exclude' ashlar export files --nfs --all-squash --root-squash
like "$(ashlar export files --nfs --no-root-squash)" "port=$NODE_NFS_PORT.* 127.0.0.1:/files" 'export says how to mount it'
is "$(ashlar fs show files --json | json '[(x["as"], x["squash"], x["active"]) for x in d["exports"]]')" \
    '[["/files", "none", true]]' 'and show, too'

# ---- a tree ----
tree=$TEST_TMP/tree
mkdir -p "$tree/a/b/c" "$tree/empty" "$tree/many"
printf 'small' >"$tree/a/small"
: >"$tree/a/nothing"
head -c 2048 /dev/urandom >"$tree/a/inline-most"
head -c 2049 /dev/urandom >"$tree/a/blocks-least"
head -c 3000001 /dev/urandom >"$tree/a/b/odd"
ln "$tree/a/small" "$tree/a/b/hard"
ln -s ../small "$tree/a/b/soft"
mkfifo "$tree/a/b/c/pipe"
truncate -s 5M "$tree/a/b/c/sparse"
for i in $(seq 400); do echo "$i" >"$tree/many/a file with a name that is number $i"; done
chmod 4755 "$tree/a/small"
chmod 1777 "$tree/empty"
touch -d '2001-02-03 04:05:06' "$tree/a/nothing" "$tree/empty"
ok 'a tree is copied' "$NFSTREE" put "$tree" "$(nfs_url /files)"
ok 'and is the same' "$NFSTREE" compare "$tree" "$(nfs_url /files)"
restart_node || bail 'the node starts again'
ok 'after a restart, too' "$NFSTREE" compare "$tree" "$(nfs_url /files)"

# ---- who sees what ----
like "$(nfs-ls "$(nfs_url /files)" 2>&1)" 'many' 'nfs-ls lists it'
ok 'a subdirectory is exported by itself' ashlar export files --nfs --path /a --as /only-a --ro
like "$(nfs-ls "$(nfs_url /only-a)")" 'small' 'what is in it is there'
fails 'nothing above it' any . nfs-ls "$(nfs_url /only-a/../many)"
fails 'nobody writes into it' any . "$NFSTREE" put "$tree" "$(nfs_url /only-a autoreconnect=0)" 1
ok 'an export for others' ashlar export files --nfs --as /files --clients 192.0.2.0/24,2001:db8::/32
fails 'this client learns nothing of it' any . nfs-ls "$(nfs_url /files)"
ok 'open again' ashlar export files --nfs --no-root-squash
ok 'as before' nfs-ls "$(nfs_url /files)"
ok 'one export is taken away' ashlar unexport files --as /only-a
fails 'it is gone' any . nfs-ls "$(nfs_url /only-a)"
fails 'twice' 1 'not exported' ashlar unexport files --as /only-a

# ---- SIGKILL in the middle of copying ----
make_fs killed
mkdir -p "$TEST_TMP/source"
for i in $(seq 40); do
    mkdir "$TEST_TMP/source/d$i"
    for k in $(seq 25); do head -c $((i * k * 37)) /dev/urandom >"$TEST_TMP/source/d$i/f$k"; done
done
"$NFSTREE" put "$TEST_TMP/source" "$(nfs_url /killed)" >"$TEST_TMP/put.log" 2>&1 &
put=$!
EXTRA_PIDS+=("$put")
half() { [ "$(ashlar fs show killed --json | json 'd["inodes"]')" -gt 300 ]; }
wait_for 60 half || bail 'files arrive'
kill_node
start_node || bail 'the node starts again after SIGKILL'
ok 'the client goes on as if nothing had been' wait "$put"
diag <"$TEST_TMP/put.log"
ok 'and everything is there' "$NFSTREE" compare "$TEST_TMP/source" "$(nfs_url /killed)"

# ---- a client that is there while the node stops in good order, or checks ----
"$PYTHON" "$(dirname "$0")/../nfs/nfspoll.py" "$NODE_NFS_PORT" /killed "$TEST_TMP/poll.end" \
    >"$TEST_TMP/poll.seen" 2>&1 &
poll=$!
EXTRA_PIDS+=("$poll")
sleep 0.3
ok 'a check while a client asks' ashlar fs check killed
stop_node
start_node || bail 'the node starts again'
touch "$TEST_TMP/poll.end"
ok 'the client goes on' wait "$poll"
like "$(cat "$TEST_TMP/poll.seen")" '^0( 10008)?$' 'and never heard that its files are gone, only to try again'

# ---- quotas ----
ok 'a quota' ashlar fs grow killed 64M
head -c 80000000 /dev/zero >"$TEST_TMP/large"
fails 'a file larger than it' any 'Failed to write' nfs-cp "$TEST_TMP/large" "$(nfs_url /killed/large)"
is "$(ashlar quota list killed --json | json '[(q["path"], q["limit_bytes"]) for q in d]')" '[["/", 67108864]]' 'quota list'
like "$(ashlar top --once --interval 0.1 --ops)" 'OPERATION' 'top shows operations'

# ---- the end ----
ok 'a file system is deleted' ashlar fs delete killed --yes
stop_node
ok 'ashlar check is clean' ashlar check "$NODE_DIR"
done_testing
