"""Calls that ordinary programs rarely make, on two mounts of one file system; see edges.rs."""
import ctypes, errno, fcntl, os, struct, subprocess, sys, time

phase, one, two, below = sys.argv[1:5]
libc = ctypes.CDLL(None, use_errno=True)
os.umask(0o022)


def refused(error, call, *args):
    try:
        call(*args)
    except OSError as e:
        assert e.errno == error, (os.strerror(e.errno), "instead of", os.strerror(error))
    else:
        raise AssertionError(f"succeeded, must be refused: {os.strerror(error)}")


def name_to_handle(path):
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + b"\0" * 128)
    if libc.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(ctypes.c_int()), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle.raw


def open_by_handle(mount, handle, flags=os.O_RDWR):
    at = os.open(mount, os.O_RDONLY)
    fd = libc.open_by_handle_at(at, ctypes.create_string_buffer(handle), flags)
    error = ctypes.get_errno()
    os.close(at)
    if fd < 0:
        raise OSError(error, "open_by_handle_at")
    return fd


def remember_handles():
    os.mkdir(f"{one}/dir")
    with open(f"{one}/dir/file", "w") as f:
        f.write("hello")
    for name in ["dir", "dir/file"]:
        with open(f"{below}/{name.replace('/', '-')}.handle", "wb") as f:
            f.write(name_to_handle(f"{one}/{name}"))


def handles():
    """Made by another mount, which is gone."""
    read = lambda name: open(f"{below}/{name}.handle", "rb").read()
    file, directory = read("dir-file"), read("dir")
    for mount in [one, two]:
        fd = open_by_handle(mount, file)
        assert os.read(fd, 10) == b"hello"
        os.close(fd)
        fd = open_by_handle(mount, directory, os.O_RDONLY | os.O_DIRECTORY)
        assert os.listdir(fd) == ["file"]
        os.close(fd)
    os.rename(f"{two}/dir/file", f"{two}/moved")
    fd = open_by_handle(one, file)
    os.pwrite(fd, b" again", 5)
    os.close(fd)
    assert open(f"{two}/moved").read() == "hello again"
    os.unlink(f"{two}/moved")
    refused(errno.ESTALE, open_by_handle, one, file)


SETLK, SETLKW = 37, 38  # F_OFD_SETLK, F_OFD_SETLKW


def lock(fd, command, kind, start, length):
    return fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, 0, start, length, 0))


def ofd_locks():
    open(f"{one}/locked", "w").close()
    a, b = os.open(f"{one}/locked", os.O_RDWR), os.open(f"{two}/locked", os.O_RDWR)
    beside = os.open(f"{one}/locked", os.O_RDWR)
    lock(a, SETLK, fcntl.F_WRLCK, 0, 10)
    for fd in [b, beside]:
        refused(errno.EAGAIN, lock, fd, SETLK, fcntl.F_WRLCK, 5, 1)
    lock(b, SETLK, fcntl.F_WRLCK, 20, 10)
    # The lock belongs to what was opened, not to the descriptor.
    copy = os.dup(a)
    os.close(a)
    refused(errno.EAGAIN, lock, b, SETLK, fcntl.F_RDLCK, 0, 1)
    os.close(copy)
    lock(b, SETLKW, fcntl.F_WRLCK, 0, 1)
    child = os.fork()
    if child == 0:
        lock(beside, SETLKW, fcntl.F_WRLCK, 0, 5)  # until the other mount lets go
        os.write(beside, b"mine")
        os._exit(0)
    time.sleep(0.2)
    assert os.stat(f"{two}/locked").st_size == 0
    lock(b, SETLK, fcntl.F_UNLCK, 0, 1)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(b, 10) == b"mine"


def huge_sparse_files():
    tib = 1 << 40
    for name, stripes in [("huge", "1"), ("striped", "2")]:
        path, other = f"{one}/{name}", f"{two}/{name}"
        subprocess.run([os.environ["NACRE"], "lfs", "setstripe", "-c", stripes, "-S", "1M", path], check=True)
        fd = os.open(path, os.O_RDWR)
        os.ftruncate(fd, 20 * tib)
        assert os.stat(other).st_size == 20 * tib
        os.pwrite(fd, b"end", 20 * tib - 3)
        os.pwrite(fd, b"mid", 7 * tib + 12345)
        os.fsync(fd)
        there = os.open(other, os.O_RDONLY)
        assert os.pread(there, 10, 20 * tib - 3) == b"end"
        assert os.pread(there, 3, 7 * tib + 12345) == b"mid"
        assert os.pread(there, 4096, 3 * tib) == b"\0" * 4096
        assert os.stat(other).st_blocks * 512 < 1 << 20
        os.ftruncate(fd, 8 * tib)
        assert os.stat(other).st_size == 8 * tib and os.pread(there, 3, 7 * tib + 12345) == b"mid"
        os.close(fd)
        os.close(there)
        os.unlink(path)


def acl_inheritance():
    def tree(base):
        os.mkdir(f"{base}/acl")
        subprocess.run(["setfacl", "-d", "-m", "u:1000:rwx,g:1001:r-x,m:rwx,o:---", f"{base}/acl"], check=True)
        open(f"{base}/acl/file", "w").close()
        os.mkdir(f"{base}/acl/sub")
        open(f"{base}/acl/sub/file", "w").close()

    def seen(base):
        names = ["acl", "acl/file", "acl/sub", "acl/sub/file"]
        texts = [subprocess.check_output(["getfacl", "-c", "-n", "-p", f"{base}/{n}"]) for n in names]
        return texts, [os.stat(f"{base}/{n}").st_mode for n in names]

    tree(one)
    tree(below)
    assert seen(two) == seen(below)


if phase == "before":
    remember_handles()
else:
    for check in [handles, ofd_locks, huge_sparse_files, acl_inheritance]:
        check()
        print(f"{check.__name__}: ok", flush=True)
