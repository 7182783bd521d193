#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""idle PORT EXPORT COUNT [NEWCOMERS]: COUNT connections that each asked for the root's attributes once and then rest;
then NEWCOMERS (20) more, one after the other, each mounts and asks; then all that rested ask again. Prints one JSON
object: how many of those are still connected, how many newcomers were served and how long the slowest took.

The process that listens at PORT is found in /proc; its resident memory is told before and after, in KiB."""
import json
import os
import resource
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'demo'))
from node import resident_kib  # noqa: E402
from rpc import NFS, Refused, Rpc, opaque  # noqa: E402

GETATTR = 1
DESCRIPTORS_BESIDE = 64


def listener(port):
    """The id of the process that listens at the TCP port of 127.0.0.1, or at any address."""
    with open('/proc/net/tcp', encoding='ascii') as table:
        rows = [line.split() for line in table][1:]
    inodes = {'socket:[%s]' % row[9] for row in rows if row[3] == '0A' and int(row[1].split(':')[1], 16) == port}
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            for fd in os.listdir('/proc/%s/fd' % pid):
                if os.readlink('/proc/%s/fd/%s' % (pid, fd)) in inodes:
                    return int(pid)
        except OSError:
            continue
    return None


def asks(client, root):
    try:
        return struct.unpack_from('>I', client.call(NFS, 3, GETATTR, root))[0] == 0
    except (OSError, EOFError, Refused):
        return False


def newcomer(port, path):
    """Seconds that it took to be served; None: it was not."""
    started = time.monotonic()
    try:
        client = Rpc(port)
        served = asks(client, opaque(client.mount(path)))
        client.connection.close()
    except (OSError, EOFError, Refused):
        served = False
    return time.monotonic() - started if served else None


def main():
    port, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    newcomers = int(sys.argv[4]) if len(sys.argv) > 4 else 20
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < count + DESCRIPTORS_BESIDE:
        sys.exit('this process may have %d descriptors only' % hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + DESCRIPTORS_BESIDE, hard))
    pid = listener(port)
    before, started = resident_kib(pid), time.monotonic()
    resting, root = [], None
    for _ in range(count):
        client = Rpc(port)
        root = root or opaque(client.mount(path))
        if not asks(client, root):
            sys.exit('connection %d was not served' % len(resting))
        resting.append(client)
    opened, after = time.monotonic() - started, resident_kib(pid)
    took = [newcomer(port, path) for _ in range(newcomers)]
    served = [seconds for seconds in took if seconds is not None]
    print(json.dumps({
        'rested': count, 'open_s': round(opened, 3), 'alive': sum(asks(client, root) for client in resting),
        'newcomers': newcomers, 'served': len(served), 'slowest_ms': round(max(served, default=0) * 1000, 3),
        'rss_before_kib': before, 'rss_after_kib': after, 'kib_each': round((after - before) / count, 2)}))


main()
