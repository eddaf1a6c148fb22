"""Cases 36 to 41: ways to talk to the network, to the harness, and to other programs."""

from __future__ import annotations

from tests.coding.sandbox.case import BOUNDED, CALL, TRY, Case, each

SOCKET = "import socket\n"

# making the socket must already fail: one that cannot reach anything today may tomorrow
FAMILIES = {
    "tcp": 'attempt("tcp", lambda: socket.create_connection(("127.0.0.1", @PORT@), 0.3))\n'
    'attempt("tcp socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))',
    "udp": 'attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", @PORT@)))\n'
    'attempt("udp socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))',
    "raw": 'attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))',
    "ipv6": 'attempt("ipv6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM))',
    "unix": 'attempt("unix", lambda: socket.socket(socket.AF_UNIX).connect("@SOCKET@"))\n'
    'attempt("unix socket", lambda: socket.socket(socket.AF_UNIX))',
    "abstract": 'attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0@ABSTRACT@"))',
    "netlink": 'attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))',
    "vsock": 'attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))',
    "packet": 'attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW, 768))',
    "alg": 'attempt("alg", lambda: socket.socket(38, socket.SOCK_SEQPACKET))',
    "bluetooth": 'attempt("bluetooth", lambda: socket.socket(31, socket.SOCK_RAW, 1))',
    "socketpair": 'attempt("socketpair", lambda: socket.socketpair())',
}

REACH = {
    "dns": 'attempt("dns", lambda: socket.getaddrinfo("example.com", 80))',
    "loopback-http": 'import http.client\ndef get():\n    connection = http.client.HTTPConnection("127.0.0.1", @PORT@, timeout=0.3)\n'
    '    connection.request("GET", "/")\n    return connection.getresponse().read()\nattempt("http", get)',
    "metadata": 'attempt("metadata", lambda: socket.create_connection(("169.254.169.254", 80), 0.3))',
}

RINGS = 'refused("io_uring_setup", 425, 8, ctypes.create_string_buffer(120))\nrefused("io_uring_enter", 426, 0, 0, 0, 0, 0, 0)'

SHARED = {
    "sysv-shm": """
libc.shmat.restype = ctypes.c_void_p
name = libc.shmget(@SHM_KEY@, 0, 0)
if name == -1:
    print("denied sysv shm")
else:
    where = libc.shmat(name, None, 0o10000)
    print("ESCAPED sysv shm", name, where and where != ctypes.c_void_p(-1).value and ctypes.string_at(where, 64))
""",
    "posix-mq": """
class Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("flags", "most", "size", "now", "a", "b", "c", "d")]
refused("mq_open", 240, ctypes.c_char_p(b"fugu-mq"), 0o100 | 2, 0o600, ctypes.byref(Attributes(0, 4, 64)))
""",
    "sysv-msg": 'refused("msgget", 68, 0, 0o1600)\nrefused("semget", 64, 0, 1, 0o1600)',
}

NAMED = """
for place in ("/dev/shm/@SHM_FILE@", "/run/shm/@SHM_FILE@"):
    attempt("posix shm " + place, lambda: open(place).read())
"""

KEYS = """
refused("add_key", 248, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"fugu"), ctypes.c_char_p(b"x"), 1, -3)
refused("request_key", 249, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"fugu"), None, 0)
refused("keyctl", 250, 0, -3, 0)
"""

CASES = [
    *each(36, {name: TRY + SOCKET + code for name, code in FAMILIES.items()}, needs="network"),
    *each(
        37,
        {name: TRY + SOCKET + code for name, code in REACH.items()},
        needs="network",
        statuses=BOUNDED,
        absent=("ESCAPED", "@CANARY@"),
        limits={"cpu_s": 1.0, "wall_s": 2.0},
    ),
    Case(number=38, name="io-uring", source=CALL + RINGS, needs="kernel"),
    *each(39, {name: CALL + code for name, code in SHARED.items()}, needs="ipc", absent=("ESCAPED", "@CANARY@")),
    Case(number=39, name="posix-shm", source=TRY + NAMED, needs="files", absent=("ESCAPED", "@CANARY@")),
    Case(number=41, name="keyring", source=CALL + KEYS, needs="ipc"),
]
