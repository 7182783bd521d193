#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The lock manager by hand: NLM version 4 and NSM over TCP, as two clients on one machine, with a port mapper and a
lock manager of our own for the call that grants a blocked lock.

    nlm.py PORT EXPORT first     locks, conflicts, waiting, granting; leaves locks behind
    nlm.py PORT EXPORT second    after a restart of the server: they are still there; then a client restarts

Prints a line for each thing that holds; exits with 1 at the first that does not."""
import socket
import struct
import sys
import threading
import time

from rpc import NFS, NLM, NSM, Rpc, opaque, receive_record, send_record

GRANTED, DENIED, BLOCKED, STALE = 0, 1, 3, 7


def holds(condition, what):
    print('%s: %s' % ('holds' if condition else 'DOES NOT HOLD', what), flush=True)
    if not condition:
        sys.exit(1)


class Client:
    """Locks of one host and one process there."""

    def __init__(self, rpc, handle, host, svid):
        self.rpc, self.handle, self.host, self.svid = rpc, handle, host, svid
        self.oh = b'%d@%s' % (svid, host)

    def alock(self, offset, length):
        return opaque(self.host) + opaque(self.handle) + opaque(self.oh) + struct.pack('>IQQ', self.svid, offset, length)

    def ask(self, procedure, args):
        reply = self.rpc.call(NLM, 4, procedure, opaque(b'cookie') + args)
        return struct.unpack('>I', reply[12:16])[0], reply[16:]

    def lock(self, offset, length, block=0, exclusive=1, reclaim=0):
        return self.ask(2, struct.pack('>II', block, exclusive) + self.alock(offset, length) +
                        struct.pack('>II', reclaim, 1))[0]

    def test(self, offset, length, exclusive=1):
        return self.ask(1, struct.pack('>I', exclusive) + self.alock(offset, length))

    def unlock(self, offset, length):
        return self.ask(4, self.alock(offset, length))[0]

    def cancel(self, offset, length):
        return self.ask(3, struct.pack('>II', 1, 1) + self.alock(offset, length))[0]


class Server:
    """A program that answers every call with what handler gives."""

    def __init__(self, port, handler):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(('127.0.0.1', port))
        self.listener.listen(5)
        self.port = self.listener.getsockname()[1]
        self.handler = handler
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            connection, _ = self.listener.accept()
            try:
                message = receive_record(connection)
                xid, _, _, program, _, procedure = struct.unpack('>IIIIII', message[:24])
                reply = struct.pack('>IIIIII', xid, 1, 0, 0, 0, 0) + self.handler(program, procedure, message[40:])
                send_record(connection, reply)
            except EOFError:
                pass


def open_file(rpc, export, name):
    root = rpc.mount(export)
    attributes = struct.pack('>II', 1, 0o644) + struct.pack('>IIIII', 0, 0, 0, 0, 0)
    reply = rpc.call(NFS, 3, 8, opaque(root) + opaque(name) + struct.pack('>I', 0) + attributes)
    holds(struct.unpack('>II', reply[:8]) == (0, 1), 'CREATE')
    length = struct.unpack('>I', reply[8:12])[0]
    return reply[12:12 + length]


def waiting(a, b):
    calls = []

    def lock_manager(program, procedure, args):
        length = struct.unpack('>I', args[:4])[0]
        calls.append((program, procedure))
        return opaque(args[4:4 + length]) + struct.pack('>I', GRANTED)

    holds(b.lock(0, 10, block=1) == BLOCKED, 'who waits is told so')
    holds(b.lock(0, 10, block=1) == BLOCKED, 'asking again waits no second time')
    holds(b.cancel(0, 10) == GRANTED, 'waiting can be given up')
    try:
        manager = Server(0, lock_manager)
        Server(111, lambda *_: struct.pack('>I', manager.port))
    except OSError as error:
        print('no port mapper of our own on port 111 (%s): nobody can be called' % error)
        holds(a.unlock(0, 100) == GRANTED and b.lock(0, 10) == GRANTED, 'an unlocked range is free')
        return
    holds(b.lock(0, 10, block=1) == BLOCKED, 'who waits is told so')
    holds(a.unlock(0, 100) == GRANTED, 'the lock in the way is given back')
    limit = time.monotonic() + 20
    while not calls and time.monotonic() < limit:
        time.sleep(0.01)
    holds(calls == [(NLM, 5)], 'who waited is called back: NLM_GRANTED')
    holds(a.lock(0, 100) == DENIED, 'and has the lock')


def first(a, b):
    holds(a.lock(0, 100) == GRANTED, 'a range is locked')
    holds(a.lock(0, 100) == GRANTED, 'by its owner again and again')
    holds(b.lock(50, 100) == DENIED, 'by nobody else where it overlaps')
    status, holder = b.test(50, 100)
    holds(status == DENIED and struct.unpack('>II', holder[:8]) == (1, a.svid), 'TEST says who has it')
    holds(b.lock(200, 0) == GRANTED, 'another range, to the end, by another one')
    holds(b.lock(0, 10, exclusive=0) == DENIED, 'a shared lock conflicts with an exclusive one')
    waiting(a, b)
    broken = Client(a.rpc, b'\1' * len(a.handle), b'hosta', 1)
    holds(broken.lock(0, 1) == STALE, 'a forged handle locks nothing')


def second(a, b):
    holds(a.lock(0, 100) == DENIED, 'after the restart the lock is still there')
    holds(b.lock(0, 10, reclaim=1) == GRANTED, 'its owner may claim it again')
    a.rpc.call(NSM, 1, 6, opaque(b.host + b'.example.org') + struct.pack('>I', 3))
    holds(a.lock(0, 0) == GRANTED, 'when its client restarts, it is free')
    a.rpc.call(NLM, 4, 23, opaque(a.host) + struct.pack('>I', 1))
    holds(b.lock(0, 0) == GRANTED, 'FREE_ALL frees all of a client')


def main():
    rpc = Rpc(int(sys.argv[1]))
    handle = open_file(rpc, sys.argv[2], b'locked')
    steps = {'first': first, 'second': second}[sys.argv[3]]
    steps(Client(rpc, handle, b'hosta', 1), Client(rpc, handle, b'hostb', 2))


if __name__ == '__main__':
    main()
