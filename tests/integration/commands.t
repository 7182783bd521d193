#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The command line: help everywhere, JSON everywhere, clear errors.
. "$(dirname "$0")/lib.sh"

like "$(ashlar --help)" 'volume' '--help names the commands'
fails 'an unknown command is refused' any . ashlar nonsense
fails 'without a node it says so' any . ashlar -s "$TEST_TMP/nothing.sock" status
like "$("$ASHLAR_BUILD/ashlard" --help)" '\-\-drive' 'ashlard --help names the options'
fails 'ashlard refuses an unknown option' any . timeout 20 "$ASHLAR_BUILD/ashlard" --nonsense
fails 'ashlard refuses a size that is none' any . timeout 20 "$ASHLAR_BUILD/ashlard" --dir "$NODE_DIR" --memory lots

start_node --drives 2 --drive-size 256M || bail 'the node starts'
make_volume v 64M mirror:2
for command in 'status' 'drive list' 'volume list' 'volume show v'; do
    # shellcheck disable=SC2086
    like "$(ashlar $command --json | json 'type(d).__name__')" '^(dict|list)$' "$command --json is JSON"
    # shellcheck disable=SC2086
    ok "$command speaks to people, too" ashlar $command
done
for command in status drive volume export unexport scrub repair top events inspect check; do
    like "$(ashlar $command --help 2>&1)" "$command" "$command --help tells about it"
done
fails 'a volume that exists is not made again' any '(exist|already)' \
    ashlar volume create v --size 64M --protect mirror:2
fails 'more copies than drives are refused' any . ashlar volume create w --size 64M --protect mirror:3
fails 'a protection that is none is refused' any . ashlar volume create w --size 64M --protect raid5
fails 'a size that is none is refused' any . ashlar volume create w --size many --protect none
fails 'a name with a slash is refused' any . ashlar volume create a/b --size 64M --protect none
fails 'a volume that does not exist is named' any 'nothing' ashlar volume show nothing
like "$(ashlar events --json 2>/dev/null | head -c 20)" '[[{]' 'events are JSON'
fails 'the last drive of a mirror cannot be removed' any . \
    ashlar drive remove "$(ashlar drive list --json | json 'd[0]["path"]')" --yes
stop_node
is $? 0 'it stops in order'
for page in "$LIB_ROOT"/man/*.[1-8]; do
    [ -f "$page" ] || continue
    is "$(man --warnings -l "$page" 2>&1 >/dev/null)" '' "$(basename "$page") formats without warnings"
done
done_testing
