"""A client of nacre servers: connections, requests, resends, callbacks, leases. The rules are those of docs/wire.md.

It keeps no changes for replay, so it serves for servers that lose nothing while it runs.
"""

import os
import socket
import struct
import time

from page import crc32c

MAGIC = 0x6E637265
HELLO, HELLO_REPLY, REQUEST, REPLY, CALLBACK, CALLBACK_ACK, ACK = range(1, 8)
RESENT, RECONSTRUCTED = 1, 4
SEVERAL_SLOTS, BATCH = 1, 2
ENOENT, TRY_LATER = 2, 4097
ROLE_CLIENT = 1


class Failed(Exception):
    """The reply to a request has an errno."""

    def __init__(self, request, status):
        super().__init__(f"{request}: {os.strerror(status)} ({status})")
        self.status = status


class ConnectionLost(Exception):
    """The connection ended, or a frame on it broke a rule."""


class Connection:
    """Frames over a socket."""

    def __init__(self, page, address, target):
        self.page = page
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.connect(address.removeprefix("unix:"))
            self.computes_body_sum = False
        else:
            host, port = address.rsplit(":", 1)
            self.socket = socket.create_connection((host.strip("[]"), int(port)))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.computes_body_sum = True
        self.socket.settimeout(60)
        self.send(dict(kind=HELLO), target.encode())
        header, body, _ = self.receive()
        if header["kind"] != HELLO_REPLY or header["status"] != 0:
            raise ConnectionLost(f"{target} at {address}: {body.decode()} ({header['status']})")

    def send(self, header, body=b"", bulk=b""):
        header = self.page.encode_header(
            **header,
            magic=MAGIC,
            version=self.page.version,
            body_bytes=len(body),
            bulk_bytes=len(bulk),
            body_sum=crc32c(body + bulk) if self.computes_body_sum else 0,
        )
        header = header[:92] + struct.pack("<I", crc32c(header[:92]))
        self.socket.sendall(header + body + bulk)

    def receive(self):
        """The next frame: header, body, bulk."""
        data = self._receive_bytes(96)
        header = self.page.decode_header(data)
        if header["magic"] != MAGIC or header["version"] != self.page.version:
            raise ConnectionLost("not a frame of this protocol version")
        if crc32c(data[:92]) != header["header_sum"]:
            raise ConnectionLost("a header with a wrong checksum")
        body = self._receive_bytes(header["body_bytes"])
        bulk = self._receive_bytes(header["bulk_bytes"])
        if header["body_sum"] not in (0, crc32c(body + bulk)):
            raise ConnectionLost("a body with a wrong checksum")
        return header, body, bulk

    def _receive_bytes(self, count):
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionLost("the peer closed the connection")
            data += piece
        return bytes(data)

    def close(self):
        self.socket.close()


class Import:
    """One target as this client sees it. One request is under way at a time."""

    def __init__(self, page, uuid, target, addresses, known=None, replaced=0):
        self.page, self.uuid, self.target, self.addresses = page, uuid, target, addresses
        self.secret = os.urandom(16)
        self.known, self.replaced = known, replaced
        self.epoch = self.generation = self.instance = 0
        self.next_xid = 1
        self.last_callback = 0
        self.clock = 0  # of the target, in milliseconds, as of the latest reply
        self.callbacks = []  # (name, body) that nobody has looked at yet
        self.connect()

    # ---- connections

    def connect(self):
        """Opens the next connection. What was granted on earlier ones stays, unless the target says otherwise."""
        self.connection = Connection(self.page, self.addresses[0], self.target)
        self.epoch += 1
        while True:
            reply, _ = self._exchange(self._new_request("Connect", self._connect_body()))
            if reply["refused"]:
                raise ConnectionLost(f"{self.target} refuses this client: {reply['refused']}")
            if reply["recovery_ms"] == 0:
                break
            time.sleep(0.01)  # the target takes no new clients before its recovery is over
        if self.generation and (reply["evicted"] or reply["generation"] != self.generation):
            raise ConnectionLost(f"evicted by {self.target}: {reply['cause']}")
        if self.instance and reply["instance"] != self.instance:
            raise ConnectionLost(f"{self.target} was restarted, and this client keeps nothing for replay")
        self.generation, self.instance = reply["generation"], reply["instance"]
        self.lease = reply["lease_ms"] / 1000
        if self.known:
            self.known["incarnation"] = reply["incarnation"]

    def _connect_body(self):
        return dict(
            client=self.uuid,
            role=ROLE_CLIENT,
            secret=self.secret,
            name="the client of docs/wire.md",
            features=SEVERAL_SLOTS | BATCH,
            max_mod_rpcs=1,
            generation=self.generation,
            known=self.known,
            replaced=self.replaced,
            instance=0,
        )

    def disconnect(self):
        self.call("Disconnect", {})
        self.connection.close()

    # ---- requests

    def call(self, name, body, bulk=b""):
        """Sends a request and returns the body of its reply; raises Failed for an errno."""
        return self.call_bulk(name, body, bulk)[0]

    def call_bulk(self, name, body, bulk=b""):
        """The same; returns the body and the bulk of the reply."""
        while True:
            try:
                return self._exchange(self._new_request(name, body, bulk))
            except Failed as failed:
                if failed.status != TRY_LATER:
                    raise
            time.sleep(0.2)  # the target is recovering and has executed nothing

    def call_and_lose_reply(self, name, body):
        """Sends a request, loses the connection, and resends the request on the next one."""
        request = self._new_request(name, body)
        self._send(request)
        self.connection.close()
        self.connect()
        request["header"]["flags"] |= RESENT
        return self._exchange(request)[0]

    def _new_request(self, name, body, bulk=b""):
        opcode, request_class, _ = self.page.requests[name]
        header = dict(
            kind=REQUEST,
            flags=0,
            opcode=opcode,
            xid=self.next_xid,
            tag=1 if request_class in ("modify", "close") else 0,
        )
        self.next_xid += 1
        return dict(name=name, header=header, body=self.page.encode(name, body), bulk=bulk)

    def _send(self, request):
        # Connect aside, one request is under way: every earlier xid has its reply.
        header = dict(request["header"], epoch=self.epoch, last_xid=request["header"]["xid"] - 1)
        self.connection.send(header, request["body"], request["bulk"])

    def _exchange(self, request):
        """Sends a request and waits for its reply; takes in callbacks that come before it."""
        self._send(request)
        while True:
            header, body, bulk = self._receive()
            if header["kind"] == REPLY and header["xid"] == request["header"]["xid"]:
                break
        self.reconstructed = bool(header["flags"] & RECONSTRUCTED)
        self.clock = header["clock"]
        if self.known:
            self.known["committed"] = max(self.known["committed"], header["last_committed"])
        if header["status"] != 0:
            raise Failed(request["name"], header["status"])
        if header["transno"] and request["name"] != "Disconnect":
            # Others may have to wait for this; a client with more to do would say it with its next request.
            self.connection.send(dict(kind=ACK, epoch=self.epoch, last_xid=header["xid"]))
        layout = self.page.requests[request["name"]][2]
        return self.page.decode(layout, body)[0], bulk

    def _receive(self):
        """The next frame of this epoch that is not a callback."""
        while True:
            header, body, bulk = self.connection.receive()
            if header["epoch"] != self.epoch:
                continue
            if header["kind"] != CALLBACK:
                return header, body, bulk
            self._take_callback(header, body)

    def _take_callback(self, header, body):
        if header["xid"] > self.last_callback + 1:
            raise ConnectionLost("a callback is missing")
        if header["xid"] == self.last_callback + 1:
            name = self.page.opcodes[header["opcode"]]
            self.callbacks.append((name, self.page.decode(name, body)[0]))
            self.last_callback = header["xid"]
        self.connection.send(dict(kind=CALLBACK_ACK, xid=header["xid"], epoch=self.epoch))

    def wait_for_callback(self, name):
        """The body of the next callback, which must be called `name`."""
        while not self.callbacks:
            header, body, _ = self.connection.receive()
            if header["epoch"] == self.epoch and header["kind"] == CALLBACK:
                self._take_callback(header, body)
        found, body = self.callbacks.pop(0)
        assert found == name, f"{found} came instead of {name}"
        return body


class Client:
    """A client of one file system: the MGS, its MDT and its OSTs."""

    def __init__(self, page, mgs_address, fs, osts):
        """Waits until the file system has its MDT and so many OSTs."""
        self.page, self.fs = page, fs
        self.uuid = os.urandom(16)
        self.mgs = Import(page, self.uuid, "MGS", [mgs_address])
        while len(targets := self._targets()) < 1 + osts:
            time.sleep(0.1)  # servers may start in any order
        imports = {(target["kind"], target["index"]): self._import(target) for target in targets}
        self.mdt = imports[2, 0]
        self.osts = {index: target for (kind, index), target in imports.items() if kind == 3}
        self.seq = self.mdt.call("GrantSeq", {})["seq"]
        self.next_oid = 1
        self.next_handle = self.next_cookie = 1

    def _targets(self):
        try:
            return self.mgs.call("ListTargets", dict(fs=self.fs))["targets"]
        except Failed as failed:
            if failed.status != ENOENT:
                raise
            return []

    def _import(self, target):
        name = f"{self.fs}-{['MGS', 'MDT', 'OST'][target['kind'] - 1]}{target['index']:04x}"
        return Import(self.page, self.uuid, name, target["addresses"], target["known"], target["replaced"])

    def disconnect(self):
        for target in [*self.osts.values(), self.mdt, self.mgs]:
            target.disconnect()

    def ping(self):
        for target in [*self.osts.values(), self.mdt, self.mgs]:
            target.call("Ping", {})

    # ---- names

    @staticmethod
    def now():
        nanoseconds = time.time_ns()
        return dict(sec=nanoseconds // 10**9, nsec=nanoseconds % 10**9)

    @staticmethod
    def caller():
        return dict(uid=os.getuid(), gid=os.getgid(), pid=os.getpid(), umask=0o022, groups=[])

    def new_fid(self):
        self.next_oid += 1
        return dict(seq=self.seq, oid=self.next_oid - 1)

    def create_request(self, parent, name, stripe_count=0, stripe_bytes=0):
        """The body of a Create that makes a regular file and opens it for reading and writing."""
        self.next_handle += 1
        return dict(
            parent=parent,
            name=name,
            fid=self.new_fid(),
            mode=0o100644,
            rdev=0,
            target=b"",
            layout=dict(stripe_count=stripe_count, stripe_bytes=stripe_bytes, first_ost=-1, dom_bytes=None),
            open=dict(handle=self.next_handle, flags=os.O_RDWR),
            exclusive=True,
            caller=self.caller(),
            time=self.now(),
        )

    # ---- data

    def write(self, entry, offset, data):
        """Writes at an offset of the file, atomically. Returns the states of the objects that were written."""
        ranges = by_object(component_of(entry), offset, len(data))
        locks = self._lock(entry, ranges, mode=2) if len(ranges) > 1 else {}
        states = {}
        for stripe, (start, parts) in ranges.items():
            ost, request = self._object(entry, stripe)
            bulk = b"".join(data[at : at + size] for at, size in parts)
            owner = {key: entry["attr"][key] for key in ("uid", "gid", "projid")}
            request |= dict(offset=start, owner=owner, mtime=self.now(), lock=locks.get(stripe, 0))
            states[stripe] = ost.call("Write", request, bulk)["state"]
        self._unlock(entry, locks)
        return states

    def read(self, entry, offset, length):
        """The bytes of a range of the file that lies within its size."""
        ranges = by_object(component_of(entry), offset, length)
        locks = self._lock(entry, ranges, mode=1) if len(ranges) > 1 else {}
        data = bytearray(length)  # objects may be shorter than the file: what they do not have is zeros
        for stripe, (start, parts) in ranges.items():
            ost, request = self._object(entry, stripe)
            size = sum(size for _, size in parts)
            _, bulk = ost.call_bulk("Read", request | dict(offset=start, len=size, lock=locks.get(stripe, 0)))
            for at, size in parts:
                data[at : at + len(bulk[:size])] = bulk[:size]
                bulk = bulk[size:]
        self._unlock(entry, locks)
        return bytes(data)

    def glimpse(self, entry):
        """What the objects of a file say about it: a Written."""
        states = {}
        for stripe in range(len(component_of(entry)["stripes"])):
            ost, request = self._object(entry, stripe)
            states[stripe] = ost.call("Glimpse", request)
        return written(component_of(entry), states)

    def lock(self, entry, stripe, mode, start, end):
        """Enqueues a lock on a range of an object: its cookie, and whether it was granted at once."""
        ost, request = self._object(entry, stripe)
        self.next_cookie += 1
        request |= dict(cookie=self.next_cookie, mode=mode, extent=dict(start=start, end=end), persistent=False)
        return self.next_cookie, ost.call("Enqueue", request)["granted"]

    def unlock(self, entry, stripe, cookie):
        ost, request = self._object(entry, stripe)
        ost.call("Cancel", dict(object=request["object"], cookie=cookie))

    def _lock(self, entry, ranges, mode):
        cookies = {}
        for stripe, (start, parts) in sorted(ranges.items()):
            end = start + sum(size for _, size in parts)
            cookies[stripe], granted = self.lock(entry, stripe, mode, start, end)
            if not granted:
                ost, _ = self._object(entry, stripe)
                assert ost.wait_for_callback("LockGranted")["cookie"] == cookies[stripe]
        return cookies

    def _unlock(self, entry, cookies):
        for stripe, cookie in cookies.items():
            self.unlock(entry, stripe, cookie)

    def _object(self, entry, stripe):
        """The OST of a stripe, and the fields that every request about its object begins with."""
        component = component_of(entry)
        laid = component["laid"][stripe] if component["laid"] else 0
        request = dict(object=dict(fid=entry["attr"]["fid"], stripe=stripe), laid=laid)
        return self.osts[component["stripes"][stripe]], request


# ---- striping


def component_of(entry):
    [component] = entry["layout"]["components"]
    return component


def by_object(component, offset, length):
    """Divides a range of a file: stripe -> (offset in the object, [(offset in the range, length)])."""
    chunk, count = component["stripe_bytes"], len(component["stripes"])
    ranges, at = {}, offset
    while at < offset + length:
        size = min(chunk - at % chunk, offset + length - at)
        start = at // chunk // count * chunk + at % chunk
        ranges.setdefault(at // chunk % count, (start, []))[1].append((at - offset, size))
        at += size
    return ranges


def written(component, states):
    """Size, blocks and mtime of a file from the states of its objects."""
    chunk, count = component["stripe_bytes"], len(component["stripes"])
    size = 0
    for stripe, state in states.items():
        if state["size"]:
            last = state["size"] - 1
            size = max(size, (last // chunk * count + stripe) * chunk + last % chunk + 1)
    blocks = sum(state["blocks"] for state in states.values())
    mtime = max((state["mtime"] for state in states.values()), key=lambda t: (t["sec"], t["nsec"]))
    return dict(size=size, blocks=blocks, mtime=mtime)
