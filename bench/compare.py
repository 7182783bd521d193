#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures ashlard beside the NBD servers that one would otherwise take: same machine, same run, same durability.

For each workload the server and its peers are measured in turn, several times over, and the medians compared:
rate, median latency, and the server's CPU (user and system) for each operation. On a machine with few cores the
ratios say more than the rates, and CPU more than both. See README.md.
"""
import json
import os
import statistics
import subprocess

import comparison
from comparison import Node, Server, free_port, goals, median


class Workload:
    """What is sent, which peer it is compared with, and what is to be reached (ratios of ours to the peer's)."""

    def __init__(self, name, peer, block, depth, read, ours='drive', protect='none', connections=1, sequential=False,
                 fua=False, bare=None, **bounds):
        self.name, self.peer, self.ours, self.protect = name, peer, ours, protect
        self.block, self.depth, self.read, self.connections = block, depth, read, connections
        self.sequential, self.fua = sequential, fua
        self.goals, self.bare = goals(**bounds), bare

    def options(self, seconds, seed):
        text = ['--block', str(self.block), '--depth', str(self.depth), '--read', str(self.read), '--connections',
                str(self.connections), '--seconds', str(seconds), '--seed', str(seed)]
        return text + (['--sequential'] if self.sequential else []) + (['--fua'] if self.fua else [])


def workloads():
    k = 1024
    table = [
        Workload('4K random read QD32, cached', 'nbdkit-file', 4 * k, 32, 100, ours='cache', rate=1.0, cpu=0.9),
        Workload('4K random read QD32', 'qemu-none', 4 * k, 32, 100, rate=1.2, cpu=0.8, bare=0.7),
        Workload('4K random read QD1', 'qemu-none', 4 * k, 1, 100, p50=0.95, cpu=0.8),
        Workload('4K random write QD32', 'qemu-none', 4 * k, 32, 0, rate=1.2, cpu=0.9),
        Workload('4K random write QD1 FUA', 'qemu-none', 4 * k, 1, 0, fua=True, p50=1.0, cpu=0.8),
        Workload('4K random write QD32 FUA', 'qemu-none', 4 * k, 32, 0, fua=True, rate=1.4, cpu=0.7),
        Workload('8K 70/30 random QD32', 'qemu-none', 8 * k, 32, 70, rate=1.2, cpu=0.9),
    ]
    for block, connections, rate in ((32, 1, None), (512, 1, 1.0), (128, 4, 1.0), (512, 4, 1.0)):
        for verb, read in (('read', 100), ('write', 0)):
            name = '%dK sequential %s QD8%s' % (block, verb, ' x%d' % connections if connections > 1 else '')
            table.append(Workload(name, 'qemu-none', block * k, 8, read, connections=connections, sequential=True,
                                  rate=rate, cpu=0.7))
    mirrored = [w for w in table if w.read < 100]
    for w in mirrored:
        table.append(Workload(w.name + ', mirror:2', w.peer, w.block, w.depth, w.read, protect='mirror:2',
                              connections=w.connections, sequential=w.sequential, fua=w.fua, cpu=1.4))
    return table


# ---- Servers of one volume with --size bytes of data; `where` is its URI ----

def make_image(folder, size):
    """Written, not sparse: an unwritten extent is another thing to read and to write."""
    path = os.path.join(folder, 'image')
    subprocess.run(['dd', 'if=/dev/urandom', 'of=' + path, 'bs=1M', 'count=%d' % (size >> 20), 'conv=fsync',
                    'status=none'], check=True)
    return path


def start_peer(folder, size, command):
    """command(socket, image)"""
    sock, image = os.path.join(folder, 'sock'), make_image(folder, size)
    server = Server('nbd+unix:///?socket=' + sock)
    server.run(folder, command(sock, image), lambda: os.path.exists(sock))
    return server


def start_nbdkit_file(args, folder, workload):
    return start_peer(folder, args.size, lambda sock, image: ['nbdkit', '-f', '-U', sock, 'file', image])


def start_qemu_none(args, folder, workload):
    return start_peer(folder, args.size, lambda sock, image: [
        'qemu-nbd', '-f', 'raw', '--cache=none', '--aio=io_uring', '--discard=unmap', '-t', '-e', '16', '-k', sock, image])


def start_ashlard(args, folder, workload):
    memory = '256M' if workload.ours == 'drive' else '4G'
    drives = '2' if workload.protect != 'none' else '1'
    server = Node(args, folder, 'nbd+unix:///v?socket=%s/node/nbd.sock' % folder,
                  ['--nbd-port', str(free_port()), '--nfs-port', '0', '--memory', memory, '--drives', drives,
                   '--drive-size', '16G'])
    server.tell('volume', 'create', 'v', '--size', str(args.size), '--protect', workload.protect)
    server.tell('export', 'v', '--nbd')
    load(args, server, ['--fill', '--block', '1048576', '--depth', '8'])
    return server


STARTERS = {'nbdkit-file': start_nbdkit_file, 'qemu-none': start_qemu_none, 'ashlard': start_ashlard}


# ---- Measuring ----

def load(args, server, options):
    return comparison.run_load([os.path.join(args.build, 'bench', 'nbdload'), server.where, '--span', str(args.size)] +
                               options, server)


def bare_drive(args, folder, workload):
    """What the drive gives without any server: fio on the peer's file."""
    image = os.path.join(folder, 'image')
    out = subprocess.run(['fio', '--name=bare', '--filename=' + image, '--ioengine=io_uring', '--direct=1',
                          '--rw=randread', '--bs=%d' % workload.block, '--iodepth=%d' % workload.depth,
                          '--runtime=%d' % args.seconds, '--time_based', '--output-format=json'],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)['jobs'][0]['read']['iops']


def measure(args, workload, folder):
    bare = []

    def start(role, own):
        return STARTERS['ashlard' if role == 'ours' else workload.peer](args, own, workload)

    def beside():
        if workload.bare:
            bare.append(bare_drive(args, os.path.join(folder, 'peer'), workload))

    results = comparison.in_turn(args, folder, start, lambda role, server, turn: load(
        args, server, workload.options(args.seconds, turn + 1)), beside)
    judged = comparison.verdicts(workload, results)
    if workload.bare:
        ratio = median(results['ours'], 'ops_per_s') / statistics.median(bare)
        judged.append(('of the bare drive', ratio, workload.bare, ratio >= workload.bare, True))
    return results, judged, {'bare': bare}


if __name__ == '__main__':
    comparison.compare(comparison.parser(__doc__).parse_args(), workloads(), measure)
