#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nfspoll PORT EXPORT FILE: mounts, then asks for the root's attributes again and again, over a new connection
when the old one ends, until FILE is there; prints each status that it was answered with, once."""
import os
import socket
import struct
import sys
import time

PROGRAM_NFS, PROGRAM_MOUNT, VERSION = 100003, 100005, 3
GETATTR = MNT = 1


def opaque(data):
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


class Client:
    xid = 0

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 20)

    def receive(self, length):
        data = b""
        while len(data) < length:
            more = self.socket.recv(length - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def call(self, program, procedure, arguments):
        Client.xid += 1
        credential = struct.pack(">I", 0) + opaque(b"nfspoll") + struct.pack(">III", 0, 0, 0)
        call = struct.pack(">7I", Client.xid, 0, 2, program, VERSION, procedure, 1)
        call += opaque(credential) + struct.pack(">II", 0, 0) + arguments
        self.socket.sendall(struct.pack(">I", 0x80000000 | len(call)) + call)
        reply = self.receive(struct.unpack(">I", self.receive(4))[0] & 0x7FFFFFFF)
        return reply[24:]  # behind the head of a reply that was accepted


def main():
    port, path, end = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    client, seen = Client(port), set()
    status, length = struct.unpack_from(">II", reply := client.call(PROGRAM_MOUNT, MNT, opaque(path.encode())))
    if status != 0:
        sys.exit(f"{path} cannot be mounted: {status}")
    root = opaque(reply[8 : 8 + length])
    while not os.path.exists(end):
        try:
            client = client or Client(port)
            seen.add(struct.unpack_from(">I", client.call(PROGRAM_NFS, GETATTR, root))[0])
            time.sleep(0.001)
        except (OSError, EOFError):
            client = None
            time.sleep(0.01)
    print(*sorted(seen))


main()
