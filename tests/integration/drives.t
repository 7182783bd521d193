#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A mirrored volume outlives its drives: lost, replaced, repaired.
. "$(dirname "$0")/lib.sh"

start_node --drives 4 --drive-size 512M || bail 'the node starts'
make_volume v 128M mirror:2
head -c 128M /dev/urandom >"$TEST_TMP/image"
ok 'an image is stored' nbdcopy --flush "$TEST_TMP/image" "$(uri v)"

list=$(ashlar drive list --json)
is "$(json 'len(d)' <<<"$list")" 4 'drive list has four drives'
like "$(json '[x["path"] for x in d]' <<<"$list")" "$NODE_DIR" 'and their paths'
ok 'drive locate finds one' ashlar drive locate "$(json 'd[0]["path"]' <<<"$list")"

victim=$(json 'd[1]["path"]' <<<"$list")
truncate -s 0 "$victim"
ok 'everything reads with one drive cut off' nbdcopy "$(uri v)" "$TEST_TMP/back"
ok 'and right' cmp "$TEST_TMP/image" "$TEST_TMP/back"
head -c 128M /dev/urandom >"$TEST_TMP/image"
ok 'writes go on' nbdcopy --flush "$TEST_TMP/image" "$(uri v)"
rm -f "$TEST_TMP/back"
ok 'and read back' nbdcopy "$(uri v)" "$TEST_TMP/back"
ok 'as they were written' cmp "$TEST_TMP/image" "$TEST_TMP/back"
state_of() { ashlar drive list --json | json "next(x['state'] for x in d if x['path'] == '$1')"; }
is_not_in_use() { [ "$(state_of "$victim")" != "$(json 'd[0]["state"]' <<<"$list")" ]; }
ok 'drive list shows that it is gone' wait_for 30 is_not_in_use

ok 'a new drive takes its place' ashlar drive replace "$victim" "$NODE_DIR/new-drive" --yes
ok 'repair ends well' ashlar repair v
is "$(ashlar volume show v --json | json 'd["healthy"]')" true 'the volume is healthy'
stop_node
ok 'ashlar check is clean' ashlar check "$NODE_DIR"

# Any one of the drives may be missing at the start.
first=$(json 'd[0]["path"]' <<<"$list")
mv "$first" "$first.away"
ok 'the node starts with another drive away' start_node
rm -f "$TEST_TMP/back"
ok 'everything reads without it' nbdcopy "$(uri v)" "$TEST_TMP/back"
ok 'and right' cmp "$TEST_TMP/image" "$TEST_TMP/back"
stop_node
mv "$first.away" "$first"
ok 'the node starts with the drive back' start_node
ok 'it catches up' ashlar repair v
is "$(ashlar volume show v --json | json 'd["healthy"]')" true 'and the volume is healthy'
ok 'scrub finds nothing wrong' ashlar scrub v
is "$(ashlar volume show v --json | json 'd["scrub"]["bad_copies"]')" 0 'no bad copy at all'
stop_node
ok 'ashlar check is clean at the end' ashlar check "$NODE_DIR"

# Drives that must not be taken.
cp "$TEST_TMP/image" "$TEST_TMP/foreign"
mke2fs -q -F -t ext4 "$TEST_TMP/foreign" 32M
mkdir "$TEST_TMP/other"
fails 'a drive with a file system on it is refused' any '(ext|file system|foreign|not empty|force)' \
    timeout 20 "$ASHLAR_BUILD/ashlard" --dir "$TEST_TMP/other" --nbd-port "$(free_port)" --nfs-port 0 --drive "$TEST_TMP/foreign"
fails 'a drive of another pool is refused' any . \
    timeout 20 "$ASHLAR_BUILD/ashlard" --dir "$TEST_TMP/other" --nbd-port "$(free_port)" --nfs-port 0 --drive "$first"
done_testing
