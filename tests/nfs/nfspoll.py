#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nfspoll PORT EXPORT FILE: mounts, then asks for the root's attributes again and again, over a new connection
when the old one ends, until FILE is there; prints each status that it was answered with, once."""
import os
import struct
import sys
import time

from rpc import NFS, Refused, Rpc, opaque

GETATTR = 1


def main():
    port, path, end = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    client, seen = Rpc(port), set()
    try:
        root = opaque(client.mount(path))
    except Refused as refused:
        sys.exit(str(refused))
    while not os.path.exists(end):
        try:
            client = client or Rpc(port)
            seen.add(struct.unpack_from('>I', client.call(NFS, 3, GETATTR, root))[0])
            time.sleep(0.001)
        except (OSError, EOFError):
            client = None
            time.sleep(0.01)
    print(*sorted(seen))


main()
