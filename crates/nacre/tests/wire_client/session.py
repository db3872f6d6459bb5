"""Usage: session.py WIRE.MD MGS_ADDRESS FSNAME [MOUNT]

What docs/wire.md lets a client do, against real servers: connect, create, write, read, getattr, unlink, disconnect; a lost
reply; a lock that another client wants. With MOUNT, a mount of the same file system must see the same.
"""

import os
import sys
import time

from client import Client, Failed, written, component_of
from page import Page

ENOENT, EEXIST = 2, 17
ROOT = dict(seq=0, oid=1)
PW = 2


def status_of(call):
    """The errno that a call ends with."""
    try:
        call()
    except Failed as failed:
        return failed.status
    return 0


def unlink(client, name):
    client.mdt.call(
        "Unlink",
        dict(
            parent=ROOT,
            name=name,
            directory=False,
            caller=client.caller(),
            time=client.now(),
            reported=dict(seq=0, oid=0),
        ),
    )


def create_striped(client, name, stripe_count):
    """The MDT of a new file system may not have connected to every OST yet: a file gets the stripes that there are."""
    for _ in range(200):
        create = client.create_request(ROOT, name, stripe_count, 64 << 10)
        created = client.mdt.call("Create", create)
        stripes = len(component_of(created["entry"])["stripes"])
        if stripes == stripe_count:
            return create, created
        close = dict(fid=create["fid"], handle=create["open"]["handle"], dirty=False, written=None, atime=None, data=None)
        client.mdt.call("Close", close)
        unlink(client, name)
        time.sleep(0.1)
    raise AssertionError(f"{stripes} stripes instead of {stripe_count}")


def one_file(client, mount, name, data, stripe_count):
    """Create, write, read, close, getattr, unlink."""
    create, created = create_striped(client, name, stripe_count)
    entry = created["entry"]
    assert created["created"] and entry["attr"]["fid"] == create["fid"]

    states = client.write(entry, 0, data)
    assert client.read(entry, 0, len(data)) == data
    assert client.read(entry, 1000, 100_000) == data[1000:101_000]

    # While the file is open for writing, the OSTs know its size; the close of the only writer tells the MDT.
    assert client.mdt.call("Getattr", dict(fid=create["fid"]))["attr"]["size_state"] == 1
    assert client.glimpse(entry)["size"] == len(data)
    close = dict(fid=create["fid"], handle=create["open"]["handle"], dirty=True, atime=None, data=None)
    client.mdt.call("Close", close | dict(written=written(component_of(entry), states)))
    attr = client.mdt.call("Getattr", dict(fid=create["fid"]))["attr"]
    assert (attr["size_state"], attr["size"], attr["mode"]) == (0, len(data), 0o100644)

    found = client.mdt.call("Lookup", dict(parent=ROOT, name=name))["entry"]
    assert found["attr"] == attr
    listed = client.mdt.call("Readdir", dict(dir=ROOT, cookie=0, entries_max=100, with_attrs=False))
    assert name in [entry["name"] for entry in listed["entries"]] and listed["eof"]
    for ost in client.osts.values():
        ost.call("Sync", {})

    if mount:
        path = os.path.join(mount, name.decode())
        with open(path, "rb") as file:
            assert file.read() == data
        with open(path, "ab") as file:
            file.write(b"of the mount")
        # The mount may have kept it.
        fid = client.mdt.call("Lookup", dict(parent=ROOT, name=name))["entry"]["attr"]["fid"]
        entry = client.mdt.call("Settle", dict(fid=fid))
        assert client.read(entry, len(data), 12) == b"of the mount"

    unlink(client, name)
    assert client.mdt.call("Lookup", dict(parent=ROOT, name=name))["entry"] is None
    assert not mount or not os.path.exists(path)


def lost_reply(client):
    """A create whose reply is lost with the connection is executed once, and its resend has the same result."""
    create = client.create_request(ROOT, b"lost")
    created = client.mdt.call_and_lose_reply("Create", create)
    assert created["created"] and created["entry"]["attr"]["fid"] == create["fid"]
    again = client.create_request(ROOT, b"lost")
    assert status_of(lambda: client.mdt.call("Create", again)) == EEXIST
    close = dict(
        fid=create["fid"], handle=create["open"]["handle"], dirty=False, written=None, atime=None, data=None
    )
    client.mdt.call("Close", close)
    unlink(client, b"lost")


def conflicting_locks(page, client, address, fs):
    """A lock is released for another client that waits for it."""
    create = client.create_request(ROOT, b"locked", 1)
    entry = client.mdt.call("Create", create)["entry"]
    first, granted = client.lock(entry, 0, PW, 0, 100)
    assert granted
    other = Client(page, address, fs, osts=2)
    second, granted = other.lock(entry, 0, PW, 50, 60)
    assert not granted
    ost = component_of(entry)["stripes"][0]
    assert client.osts[ost].wait_for_callback("LockBlocking")["cookie"] == first
    client.unlock(entry, 0, first)
    assert other.osts[ost].wait_for_callback("LockGranted")["cookie"] == second
    other.unlock(entry, 0, second)
    other.disconnect()
    close = dict(
        fid=create["fid"], handle=create["open"]["handle"], dirty=False, written=None, atime=None, data=None
    )
    client.mdt.call("Close", close)
    unlink(client, b"locked")


def main():
    path, address, fs, mount = (sys.argv[1:] + [None])[:4]
    page = Page(path)
    client = Client(page, address, fs, osts=2)
    client.ping()
    one_file(client, mount, b"plain", bytes(range(256)) * 800, 1)
    one_file(client, mount, b"striped", os.urandom(300_000), 2)
    lost_reply(client)
    conflicting_locks(page, client, address, fs)
    client.disconnect()
    print("the session went as the page says")


main()
