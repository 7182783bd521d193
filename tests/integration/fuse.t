#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# File systems mounted on this machine: what mount and umount say, a tree unpacked while the node is killed again
# and again, files that stay open over that, caches that follow what others change, a dead mount process.
. "$(dirname "$0")/lib.sh"

[ "$(id -u)" = 0 ] || skip_all 'only root mounts'
[ -c /dev/fuse ] || skip_all 'there is no /dev/fuse'

A=$TEST_TMP/a B=$TEST_TMP/b
mkdir "$A" "$B"

# Whatever happens, no mount stays behind.
unmount_all() {
    local rc=$?
    for dir in "$A" "$B"; do umount -l "$dir" 2>/dev/null; done
    (exit $rc)
    _cleanup
}
trap unmount_all EXIT

mounted() { grep -q " $1 fuse.ashlar " /proc/mounts; }
mount_pid() { pgrep -f -- "mount files $1\$"; }

fails 'without a node' 1 'no node answers' ashlar mount files "$A" -o wait=0
start_node --drives 3 --drive-size 1G --memory 256M || bail 'the node starts'
fails 'an unknown file system' 1 'no file system "files"' ashlar mount files "$A" -o wait=0
ok 'a file system is created' ashlar fs create files
fails 'a folder that is not there' 1 'No such file' ashlar mount files "$TEST_TMP/nothing"
fails 'what is no folder' 1 'not a directory' ashlar mount files "$NODE_LOG"
fails 'an unknown option' 2 'not a mount option' ashlar mount files "$A" -o rw,nonsense
fails 'nothing is mounted yet' 1 'nothing is mounted' ashlar umount "$A"
ok 'it is mounted' ashlar mount files "$A"
ok 'the kernel knows it' mounted "$A"
fails 'the same folder again' 1 'is a mount of Ashlar already' ashlar mount files "$A"
ok 'and a second time, read-only' ashlar mount files "$B" -o ro,noatime
fails 'where nothing can be written' any 'Read-only' touch "$B/x"

# ---- a tree, while the node is killed ----
tree=$TEST_TMP/tree
mkdir -p "$tree/empty" "$tree/many"
for i in $(seq 300); do head -c $((i * 37)) /dev/zero | tr '\0' x >"$tree/many/file $i"; done
head -c 3000001 /dev/urandom >"$tree/odd"
ln "$tree/odd" "$tree/hard"
ln -s many/x "$tree/soft"
mkfifo "$tree/pipe"
chmod 4711 "$tree/odd"
touch -d '2001-02-03 04:05:06.789012345' "$tree/many/file 7" "$tree/empty"
tar --format=posix -C "$tree" -cf "$TEST_TMP/tree.tar" .

mkdir "$A/tree"
exec 7<>"$A/open"
echo kept >&7
rm "$A/open"
ok 'a file is locked' flock -n "$A/tree" true
tar -C "$A/tree" -xf "$TEST_TMP/tree.tar" >"$TEST_TMP/tar.out" 2>&1 &
tar_pid=$!
EXTRA_PIDS+=("$tar_pid")
for round in 1 2 3; do
    wait_for 5 test "$(find "$tree" | wc -l)" -gt $((round * 10))
    sleep 0.2
    kill_node
    start_node || bail "the node starts again, round $round"
done
wait "$tar_pid"
is "$?" 0 'unpacking goes on while the node is killed and started three times'
is "$(cat "$TEST_TMP/tar.out")" '' 'without a word'
list() { (cd "$1" && find . -printf '%P %y %m %n %s %T@ %l\n' | sed 's/^\([^ ]*\) d \([^ ]* [^ ]*\) [^ ]*/\1 d \2/' | sort); }
list "$tree" >"$TEST_TMP/wanted"
list "$A/tree" >"$TEST_TMP/got"
is "$(diff "$TEST_TMP/wanted" "$TEST_TMP/got")" '' 'names, modes, links, sizes and times are the same'
ok 'the contents, too' diff -r --no-dereference -x pipe "$tree" "$A/tree"
is "$(cat "/proc/$$/fd/7")" kept 'a deleted file is still open'
echo more >&7
is "$(tail -n 1 "/proc/$$/fd/7")" more 'and can be written'
exec 7>&-

# ---- caches ----
echo one >"$A/shared"
is "$(cat "$B/shared")" one 'the other mount sees a new file'
echo two >"$A/shared"
two() { [ "$(cat "$B/shared")" = two ]; }
ok 'and its new content' wait_for 5 two
rm "$A/shared"
gone() { ! [ -e "$B/shared" ]; }
ok 'and that it is gone' wait_for 5 gone

# ---- the node is away ----
kill_node
touch "$A/later" &
touch_pid=$!
EXTRA_PIDS+=("$touch_pid")
sleep 0.3
ok 'who uses the mount waits' kill -0 "$touch_pid"
touch "$A/never" &
never_pid=$!
sleep 0.3
kill -KILL "$never_pid"
ok 'and can be killed' wait_for 5 _is_gone "$never_pid"
ok 'unmounting needs no node' timeout 10 "$ASHLAR_BUILD/ashlar" umount "$B"
start_node || bail 'the node starts again'
wait "$touch_pid"
is "$?" 0 'and goes on when it is back'
ok 'with what it wanted' test -e "$A/later"

# ---- ends ----
exec 8<"$A/later"
fails 'a mount in use' 1 'uses it' ashlar umount "$A"
exec 8<&-
pid=$(mount_pid "$A")
ok 'the mount process ends with the mount' ashlar umount "$A"
ok 'soon' wait_for 5 _is_gone "$pid"
ok 'mounted again' ashlar mount files "$A"
kill -KILL "$(mount_pid "$A")"
fails 'a mount process that was killed leaves its mount dead' any 'not connected|abort' ls "$A/later"
ok 'which can be unmounted' wait_for 5 "$ASHLAR_BUILD/ashlar" umount "$A"
ok 'and mounted anew' ashlar mount files "$A"
ok 'with all that was there' test -e "$A/tree/many/file 300"
ok 'removing all of it' rm -r "$A/tree" "$A/later"
ok 'unmounted' ashlar umount "$A"
ok 'the node stops' stop_node
ok 'the pool is whole' ashlar check "$NODE_DIR"
done_testing
