# SPDX-License-Identifier: Apache-2.0
"""One node for the demonstration: starting, killing and asking it as a person would, by its programs alone."""
import json
import os
import random
import signal
import socket
import subprocess
import time

BLOCK = 4096
SLOW = int(os.environ.get('ASHLAR_SLOW', '1'))


class Failed(Exception):
    """Something that the steps after it cannot do without."""


def free_port():
    """Below the range of outgoing connections, so that none of those has it when a stopped node comes back."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(('127.0.0.1', port))
                return port
            except OSError:
                continue


def resident_kib(pid):
    """What a process has in memory now."""
    with open('/proc/%d/status' % pid, encoding='ascii') as status:
        return next(int(line.split()[1]) for line in status if line.startswith('VmRSS:'))


def wait_until(condition, seconds, what):
    """Polls; gives what the condition gave once it is true."""
    limit = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > limit:
            raise Failed('after %d s still not: %s' % (seconds * SLOW, what))
        time.sleep(0.05)


def run(args, timeout=600, check=True):
    """Runs a program to its end; its standard output, or Failed with what it said."""
    done = subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout * SLOW, check=False)
    out = done.stdout.decode(errors='replace')
    if check and done.returncode != 0:
        said = (done.stderr.decode(errors='replace') + out).strip()[-1500:]
        raise Failed('exit %d of: %s\n%s' % (done.returncode, ' '.join(args), said))
    return out


class Node:
    def __init__(self, build, folder, options):
        self.build = os.path.abspath(build)
        self.dir = os.path.join(folder, 'node')
        self.log_path = os.path.join(folder, 'ashlard.log')
        self.options = options
        self.port = free_port()
        self.nfs_port = free_port()
        self.process = None
        os.mkdir(self.dir)

    # ---- Life ----

    def start(self):
        """Starts ashlard and waits until it answers; the seconds that took."""
        started = time.monotonic()
        with open(self.log_path, 'ab') as log:
            self.process = subprocess.Popen(
                [os.path.join(self.build, 'ashlard'), '--dir', self.dir, '--nbd-port', str(self.port),
                 '--nfs-port', str(self.nfs_port)] + self.options,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._answers, 10, 'ashlard answers status')
        return time.monotonic() - started

    def _answers(self):
        if self.process.poll() is not None:
            raise Failed('ashlard ended with %s:\n%s' % (self.process.returncode, self.log_tail()))
        return subprocess.run(self._ashlar('status'), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self):
        """Orderly; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=90 * SLOW)

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def log_tail(self, lines=12):
        with open(self.log_path, encoding='utf-8', errors='replace') as log:
            return ''.join(log.readlines()[-lines:])

    # ---- The command line ----

    def _ashlar(self, *args):
        return [os.path.join(self.build, 'ashlar'), '-s', os.path.join(self.dir, 'ashlar.sock')] + list(args)

    def ashlar(self, *args, timeout=600):
        return run(self._ashlar(*args), timeout=timeout)

    def scrub(self, volume):
        """Returns the exit code: 1 if blocks were lost."""
        return subprocess.run(self._ashlar('scrub', volume), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              timeout=600 * SLOW, check=False).returncode

    def ask(self, *args):
        """The answer of a command with --json."""
        return json.loads(self.ashlar(*args, '--json'))

    def offline(self, *args):
        """An offline command on the stopped node: (exit code, output)."""
        done = subprocess.run([os.path.join(self.build, 'ashlar')] + list(args), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600 * SLOW, check=False)
        return done.returncode, done.stdout.decode(errors='replace')

    def uri(self, volume):
        return 'nbd+unix:///%s?socket=%s/nbd.sock' % (volume, self.dir)

    def create(self, volume, size, protection):
        self.ashlar('volume', 'create', volume, '--size', str(size), '--protect', protection)
        self.ashlar('export', volume, '--nbd')

    def volume(self, name):
        return self.ask('volume', 'show', name)

    def damage_of(self, name):
        """The ranges that the node knows to be lost, as status names them: [(offset, length)…], merged."""
        for volume in self.ask('status')['volumes']:
            if volume['name'] == name:
                return merge((d['offset'], d['length']) for d in volume.get('damage', []))
        return []

    def drives(self):
        return self.ask('drive', 'list')

    def blocks_of(self, drive_path):
        """What lies where on a drive of the stopped node; see the README for the form."""
        code, out = self.offline('inspect', self.dir, '--blocks', drive_path, '--json')
        if code != 0:
            raise Failed('ashlar inspect --blocks exits with %d: %s' % (code, out[-500:]))
        return json.loads(out)


def merge(ranges):
    """Sorted, overlapping and adjacent ones joined."""
    merged = []
    for offset, length in sorted(ranges):
        if length <= 0:
            continue
        if merged and offset <= merged[-1][0] + merged[-1][1]:
            end = max(merged[-1][0] + merged[-1][1], offset + length)
            merged[-1] = (merged[-1][0], end - merged[-1][0])
        else:
            merged.append((offset, length))
    return merged


def total(ranges):
    return sum(length for _, length in ranges)
