#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Endurance of a node's memory: small files over NFS for as long as is asked, at an even pace, while the node's
resident memory is sampled; one file in four is removed again, one in eight read back and compared.

    tests/nfs/soak.py [--build build] [--minutes 15] [--files 500000] [--memory 256M] [--clients 4] [--csv FILE]

Prints one JSON object. Exit code 0: every call was answered well, and over the second half of the time the memory
grew by at most 1 % (the line of least squares through the samples, from its begin to its end). The budget is small so
that the node's cache is full before that half begins: else what is measured is a cache that fills."""
import argparse
import json
import multiprocessing
import os
import shutil
import signal
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'demo'))
from node import Node, resident_kib  # noqa: E402
from rpc import NFS, Refused, Rpc, opaque  # noqa: E402

READ, WRITE, CREATE, MKDIR, REMOVE = 6, 7, 8, 9, 12
FILE_SYNC = 2
FILES_PER_DIRECTORY = 1000
GROWTH_MAX = 0.01
SAMPLE_S = 0.5
NO_ATTRIBUTES = struct.pack('>6I', 0, 0, 0, 0, 0, 0)


class Files:
    """What one client does; every status that is not 0 is an exception."""

    def __init__(self, port, path):
        self.rpc = Rpc(port)
        self.root = opaque(self.rpc.mount(path))

    def call(self, procedure, args):
        reply = self.rpc.call(NFS, 3, procedure, args)
        if struct.unpack_from('>I', reply)[0] != 0:
            raise Refused('NFS procedure %d: status %d' % (procedure, struct.unpack_from('>I', reply)[0]))
        return reply

    def made(self, reply):
        """The handle in a reply of CREATE or MKDIR."""
        present, length = struct.unpack_from('>II', reply, 4)
        if not present:
            raise Refused('no handle')
        return opaque(reply[12:12 + length])

    def directory(self, name):
        return self.made(self.call(MKDIR, self.root + opaque(name) + NO_ATTRIBUTES))

    def create(self, directory, name):
        return self.made(self.call(CREATE, directory + opaque(name) + struct.pack('>I', 0) + NO_ATTRIBUTES))

    def write(self, handle, data):
        self.call(WRITE, handle + struct.pack('>QII', 0, len(data), FILE_SYNC) + opaque(data))

    def read(self, handle, length):
        reply = self.call(READ, handle + struct.pack('>QI', 0, length))
        at = 8 + (84 if struct.unpack_from('>I', reply, 4)[0] else 0)
        _count, _eof, size = struct.unpack_from('>III', reply, at)
        return reply[at + 12:at + 12 + size]


def content(client, number):
    return (b'%d/%d ' % (client, number) * 200)[:100 + number * 37 % 1400]


def client_run(client, port, count, seconds, done):
    files, directory, started = Files(port, '/soak'), None, time.monotonic()
    for number in range(count):
        ahead = started + seconds * number / count - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        if number % FILES_PER_DIRECTORY == 0:
            directory = files.directory(b'c%d-%d' % (client, number // FILES_PER_DIRECTORY))
        name, data = b'file-%d' % number, content(client, number)
        handle = files.create(directory, name)
        files.write(handle, data)
        if number % 8 == 0 and files.read(handle, 4096) != data:
            raise Refused('file %d of client %d has other content' % (number, client))
        if number % 4 == 3:
            files.call(REMOVE, directory + opaque(name))
        done[client] = number + 1


def growth(samples):
    """Of the line of least squares: its rise over the samples' time, as a part of the mean."""
    times, values = zip(*samples)
    time_mean, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - time_mean) ** 2 for t in times)
    slope = sum((t - time_mean) * (v - mean) for t, v in samples) / spread
    return slope * (times[-1] - times[0]) / mean


def soak(options, node):
    seconds, each = options.minutes * 60, options.files // options.clients
    done = multiprocessing.Array('q', options.clients)
    clients = [multiprocessing.Process(target=client_run, args=(i, node.nfs_port, each, seconds, done))
               for i in range(options.clients)]
    started, samples = time.monotonic(), []
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients) and node.runs():
        samples.append((time.monotonic() - started, resident_kib(node.process.pid)))
        time.sleep(SAMPLE_S)
    for client in clients:
        client.join()
    took = time.monotonic() - started
    if options.csv:
        with open(options.csv, 'w', encoding='ascii') as out:
            out.writelines('%.1f,%d\n' % sample for sample in samples)
    half = [sample for sample in samples if sample[0] >= took / 2]
    if len(half) < 3:
        sys.exit('too short to tell')
    well = node.runs() and all(client.exitcode == 0 for client in clients)
    result = {'files': sum(done), 'seconds': round(took, 1), 'calls_well': well, 'rss_kib_first': samples[0][1],
              'rss_kib_half': half[0][1], 'rss_kib_last': half[-1][1], 'growth': round(growth(half), 5)}
    print(json.dumps(result))
    return well and result['files'] == each * options.clients and result['growth'] <= GROWTH_MAX


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--build', default='build')
    parser.add_argument('--minutes', type=float, default=15)
    parser.add_argument('--files', type=int, default=500000)
    parser.add_argument('--memory', default='256M')
    parser.add_argument('--clients', type=int, default=4)
    parser.add_argument('--csv')
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix='ashlar-soak.')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    node = Node(options.build, folder, ['--drives', '2', '--drive-size', '8G', '--memory', options.memory])
    try:
        node.start()
        node.ashlar('fs', 'create', 'soak')
        node.ashlar('export', 'soak', '--nfs', '--no-root-squash')
        good = soak(options, node)
    finally:
        if node.runs():
            node.stop()
        shutil.rmtree(folder)
    sys.exit(0 if good else 1)


if __name__ == '__main__':
    main()
