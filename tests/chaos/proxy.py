"""A TCP connection that can be cut: everything that goes to one address goes through here."""

import contextlib
import socket
import threading


class Proxy:
    """Listens on a port of its own and passes everything on to `target`, until it is cut."""

    def __init__(self, target: str):
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = _listen(0)
        self._port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self._flows = threading.Event()
        self._flows.set()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Drops every connection, and takes no new ones."""
        self._stop_listening()
        for one in list(self._open):
            _shut(one)

    def swallow(self) -> None:
        """From now on nothing arrives, and nobody is told so: as where packets are lost on the way."""
        self._flows.clear()

    def heal(self) -> None:
        """Passes everything on again, first what waited."""
        self._flows.set()
        if self._listener.fileno() < 0:
            self._listener = _listen(self._port)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """For good."""
        self._flows.set()
        self.refuse()

    def _stop_listening(self) -> None:
        _shut(self._listener)  # close() alone would not wake accept()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._flows.wait()
        try:
            far = socket.create_connection(self._target, timeout=10)
        except OSError:
            _shut(near)
            return
        far.settimeout(None)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open |= {near, far}
        threading.Thread(target=self._pump, args=(near, far), daemon=True).start()
        self._pump(far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
        for one in (source, sink):
            _shut(one)
            self._open.discard(one)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
