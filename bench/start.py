#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How long a node takes to start after SIGKILL under load, with much written.

  bench/start.py --build build [--dir DIR] [--gib 30] [--drives 8] [--protect none] [--settle CMD]

Makes a pool in DIR, fills volumes with large sequential and then random writes through NBD, kills the node with
SIGKILL under a fio load of random writes, starts it again and prints the seconds until `status` answers, until all
volumes are open, and until the first byte of each was read. Needs about 1.2 times --gib on the file system of DIR;
what is made there is removed in the end.
"""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

GIB = 1 << 30


def uri(folder, name):
    return 'nbd+unix:///%s?socket=%s/nbd.sock' % (name, folder)


class Node:
    def __init__(self, build, folder, drives, drive_bytes):
        self.build, self.dir = build, folder
        self.args = [os.path.join(build, 'ashlard'), '--dir', folder, '--nbd-port', '0', '--drives', str(drives),
                     '--drive-size', str(drive_bytes), '--log-level', 'debug']
        self.log = open(os.path.join(folder, 'log'), 'ab')
        self.process = None

    def spawn(self):
        self.process = subprocess.Popen(self.args, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)

    def ashlar(self, *args):
        return subprocess.run([os.path.join(self.build, 'ashlar'), '-s', self.dir + '/ashlar.sock'] + list(args),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)

    def status(self):
        done = self.ashlar('status', '--json')
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait(self, ready):
        while True:
            status = self.status()
            if status and ready(status):
                return status
            if self.process.poll() is not None:
                sys.exit('ashlard ended with %d; see %s/log' % (self.process.returncode, self.dir))
            time.sleep(0.01)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def fio(folder, jobs, seconds=None):
    """jobs: (volume, rw, block size, bytes). Returns the process."""
    command = ['fio', '--output-format=terse', '--ioengine=nbd', '--thread=1', '--randrepeat=0', '--refill_buffers=1']
    if seconds:
        command += ['--time_based=1', '--runtime=%d' % seconds]
    for number, (volume, rw, size, total) in enumerate(jobs):
        command += ['--name=j%d' % number, '--uri=' + uri(folder, volume), '--rw=' + rw, '--bs=%d' % size,
                    '--iodepth=16', '--io_size=%d' % total, '--size=%d' % VOLUME_BYTES]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


VOLUMES = 3
VOLUME_BYTES = 0


def read_one(node, name):
    subprocess.run(['qemu-io', '-f', 'raw', '-c', 'read 0 4k', uri(node.dir, name)], check=True,
                   stdout=subprocess.DEVNULL)


def timed(node):
    began = time.monotonic()
    node.spawn()
    node.wait(lambda s: True)
    answers = time.monotonic() - began
    status = node.wait(lambda s: s['state'] == 'ready')
    ready = time.monotonic() - began
    for i in range(VOLUMES):
        read_one(node, 'v%d' % i)
    reads = time.monotonic() - began
    bad = [v['name'] for v in status['volumes'] if v['state'] != 'open']
    return answers, ready, reads, bad


def main():
    global VOLUME_BYTES
    p = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    p.add_argument('--build', default='build')
    p.add_argument('--dir')
    p.add_argument('--gib', type=float, default=30)
    p.add_argument('--drives', type=int, default=8)
    p.add_argument('--protect', default='none')
    p.add_argument('--rounds', type=int, default=1)
    p.add_argument('--hold', help='a command that runs while the restart is timed, ended with it')
    o = p.parse_args()
    folder = tempfile.mkdtemp(prefix='ashlar-start.', dir=o.dir or '/var/tmp')
    VOLUME_BYTES = int(o.gib * GIB / VOLUMES) // (1 << 20) * (1 << 20)
    node = Node(o.build, folder, o.drives, int(o.gib * GIB * 1.5 / o.drives) // (1 << 20) * (1 << 20))
    try:
        node.spawn()
        node.wait(lambda s: s['state'] == 'ready')
        for i in range(VOLUMES):
            for command in (['volume', 'create', 'v%d' % i, '--size', str(VOLUME_BYTES), '--protect', o.protect],
                            ['export', 'v%d' % i, '--nbd']):
                done = node.ashlar(*command)
                if done.returncode:
                    sys.exit(done.stderr.decode())
        names = ['v%d' % i for i in range(VOLUMES)]
        for name in names:
            if fio(folder, [(name, 'write', 1 << 20, VOLUME_BYTES)]).wait():
                sys.exit('filling failed')
        if fio(folder, [(n, 'randwrite', 4096, VOLUME_BYTES // 32) for n in names], 60).wait():
            sys.exit('random writes failed')
        for _ in range(o.rounds):
            load = fio(folder, [(n, 'randwrite', 4096, VOLUME_BYTES) for n in names] +
                       [(n, 'write', 1 << 17, VOLUME_BYTES) for n in names], 60)
            time.sleep(12)
            node.kill()
            load.wait()
            hold = subprocess.Popen(o.hold.split(), start_new_session=True) if o.hold else None
            if hold:
                time.sleep(2)
            answers, ready, reads, bad = timed(node)
            if hold:
                os.killpg(hold.pid, signal.SIGTERM)
                hold.wait()
            print('%.1f GiB written, %s: `status` answers after %.2f s, ready after %.2f s, all volumes read after '
                  '%.2f s%s' % (o.gib, o.protect, answers, ready, reads, '; not open: %s' % bad if bad else ''),
                  flush=True)
            if reads > 5 or bad:
                print('slower than 5 s')
        node.process.terminate()
        node.process.wait()
    finally:
        if node.process and node.process.poll() is None:
            node.kill()
        if os.environ.get('ASHLAR_KEEP_LOG'):
            shutil.copy(folder + '/log', os.environ['ASHLAR_KEEP_LOG'])
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
    main()
