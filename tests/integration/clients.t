#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Standard NBD clients work on a volume as on any disk.
. "$(dirname "$0")/lib.sh"

start_node --drives 4 --drive-size 1G || bail 'the node starts'
make_volume disk 256M mirror:2

# Real bytes with holes: programs, then nothing, then programs.
image=$TEST_TMP/image
find /usr/bin -type f -size +64k -print0 | sort -z | head -z -n 80 | xargs -0 cat | head -c 48M >"$image"
truncate -s 200M "$image"
head -c 8M "$image" | dd of="$image" bs=1M seek=192 conv=notrunc status=none
truncate -s 256M "$image"

info=$(nbdinfo --json "$(uri disk)")
is "$(json 'd["exports"][0]["export-size"]' <<<"$info")" 268435456 'nbdinfo sees the size'
is "$(json 'd["exports"][0]["is_read_only"]' <<<"$info")" false 'nbdinfo sees that it is writable'
for can in can_flush can_fua can_trim can_zero can_multi_conn can_df can_cache can_fast_zero; do
    is "$(json "d['exports'][0]['$can']" <<<"$info")" true "nbdinfo sees $can"
done
like "$(json 'd["exports"][0]["contexts"]' <<<"$info")" 'base:allocation' 'nbdinfo sees base:allocation'
like "$(nbdinfo --list "nbd://127.0.0.1:$NODE_PORT" 2>&1)" '"?disk"?' 'nbdinfo lists the export over TCP'
is "$(nbdinfo --size "$(uri disk tcp)")" 268435456 'the same volume is there over TCP'
fails 'an unknown name is refused' any . nbdinfo --size "$(uri nothing)"

ok 'nbdcopy stores an image' nbdcopy --flush "$image" "$(uri disk)"
ok 'nbdcopy reads it back over TCP' nbdcopy "$(uri disk tcp)" "$TEST_TMP/back"
ok 'and it is the same' cmp "$image" "$TEST_TMP/back"
map=$(nbdinfo --map --json "$(uri disk)")
is "$(json 'sum(e["length"] for e in d)' <<<"$map")" 268435456 'the block map covers the volume'
like "$(json 'sum(e["length"] for e in d if e["type"] & 1)' <<<"$map")" '^[0-9]{8,}$' 'the block map shows the hole'

ok 'qemu-img info opens it' qemu-img info "$(uri disk)"
is "$(qemu-img compare -f raw -F raw "$image" "$(uri disk)" 2>&1)" 'Images are identical.' 'qemu-img compare finds it identical'
make_volume second 256M none
ok 'qemu-img convert copies from volume to volume' qemu-img convert -n -f raw -O raw "$(uri disk)" "$(uri second)"
ok 'and both are the same' qemu-img compare -f raw -F raw "$(uri disk)" "$(uri second)"
ok 'qemu-img bench writes' qemu-img bench -f raw -t none -c 2000 -d 16 -s 4096 -w "$(uri second)"

for rw in randwrite write randrw; do
    ok "fio verifies $rw" fio --name="$rw" --ioengine=nbd --uri="$(uri second)" --rw=$rw --bsrange=4k-128k \
        --size=64M --iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --randseed=7 --output-format=terse
done
stop_node
is $? 0 'the node stops in order'
ok 'ashlar check is clean' ashlar check "$NODE_DIR"
done_testing
