"""Simulated sockets, as far as the gateway uses them, with delays, pieces, buffers, half-closes and resets.

A connection has two ends (`End`). Each end has a buffer for unsent bytes and one for received bytes. One piece at a
time travels from an end's send buffer to the peer's receive buffer, when there is room. An end belongs to a
descriptor of a process, or to a `Peer`, which is a model without a process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from simulation.world import NS_PER_MS, NS_PER_S, Process, World

FIRST_DESCRIPTOR: Final = 1_000_000
"""The first simulated descriptor. Real descriptors are below it."""

LEAST_BYTES_PER_S: Final = 400_000
"""The least that any link carries."""

GONE_NS: Final = 120 * NS_PER_S
"""Time after which a kernel with keep-alive probes notices that a peer is gone.

The peer's kernel forgets its socket after a minute, and the next probe comes within another minute.
"""

_SO_MEMINFO: Final = 55
_SIOCOUTQNSD: Final = 0x894B
_ON_RESET: Final = struct.pack("ii", 1, 0)


class Peer(Protocol):
    """A model without a process that has an end of a connection: a broker or a client."""

    def received(self, end: End) -> None:
        """Bytes or the end of the stream have arrived; see `End.take` and `End.ended`."""

    def sent(self, end: End) -> None:
        """There is room to send more."""

    def lost(self, end: End) -> None:
        """The connection was reset."""


class Link:
    """How bytes travel in both directions of a connection.

    Attributes:
        number: number of the connection.
        local: whether it is between processes of one machine.
        delay_ns: delay of a piece.
        piece_bytes: size of the largest piece.
        stalled_until_ns: nothing arrives before this time.
    """

    __slots__ = ("delay_ns", "local", "number", "piece_bytes", "stalled_until_ns")

    def __init__(self, number: int, delay_ns: int, piece_bytes: int, *, local: bool = False) -> None:
        self.number = number
        self.local = local
        self.delay_ns = delay_ns
        self.piece_bytes = piece_bytes
        self.stalled_until_ns = 0


class End:
    """One end of a connection.

    Attributes:
        peer: the other end.
        owner: the `Peer` with this end; None: a descriptor has it.
        file: its open file, if a process has it.
        unread_bytes: bytes that have arrived but were not read.
        unsent_bytes: bytes that have not arrived at the peer's end.
        ended: the peer sends nothing more, and all its bytes have arrived.
        reset: the connection was reset.
        vanished: its machine has lost power: it sends nothing and acknowledges nothing.
        asks_for_life: the kernel sends keep-alive probes (SO_KEEPALIVE), which notice a vanished peer.
    """

    __slots__ = (
        "_finishing",
        "_flying",
        "_in",
        "_out",
        "address",
        "asks_for_life",
        "closed",
        "ended",
        "file",
        "finished",
        "in_limit",
        "link",
        "network",
        "out_limit",
        "owner",
        "peer",
        "reset",
        "side",
        "unread_bytes",
        "unsent_bytes",
        "vanished",
        "wants_room",
    )

    def __init__(self, network: Network, link: Link, side: int, address: tuple[str, int]) -> None:
        self.network = network
        self.link = link
        self.side = side
        self.address = address
        self.peer: End
        self.owner: Peer | None = None
        self.file: File | None = None
        self.in_limit = self.out_limit = network.buffer_bytes
        self.unread_bytes = 0
        self.unsent_bytes = 0
        self.ended = self.reset = self.closed = self.finished = self.vanished = False
        self.wants_room = False
        self.asks_for_life = False
        self._in: deque[bytes] = deque()
        self._out: deque[bytes] = deque()
        self._flying = False
        self._finishing = False

    # -- sending ---------------------------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """The number of bytes that can be sent now."""
        return max(0, self.out_limit - self.unsent_bytes)

    def send(self, data: bytes) -> int:
        """Sends as many of the bytes as there is room for. Returns their number.

        Raises:
            OSError: the connection was reset, or this side has finished sending.
        """
        if self.reset or self.finished or self.closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        taken = min(len(data), self.room_bytes)
        if taken < len(data):
            self.wants_room = True
        if taken:
            self._out.append(data if taken == len(data) else data[:taken])
            self.unsent_bytes += taken
            self._fly()
        return taken

    def finish(self) -> None:
        """Sends the end of the stream after all bytes."""
        if not self.finished:
            self.finished = self._finishing = True
            self._fly()

    def _fly(self) -> None:
        if self._flying or self.peer.vanished:
            return
        link = self.link
        if self._out:
            room = self.peer.in_limit - self.peer.unread_bytes
            most = min(link.piece_bytes, room)
            if self.peer.closed:
                most = link.piece_bytes
            if most <= 0:
                return  # continues when the peer has read
            first = self._out[0]
            if len(first) <= most:
                piece = self._out.popleft()
                if self._out and len(piece) + len(self._out[0]) <= most:
                    pieces = [piece]
                    size = len(piece)
                    while self._out and size + len(self._out[0]) <= most:
                        size += len(self._out[0])
                        pieces.append(self._out.popleft())
                    piece = b"".join(pieces)
            else:
                piece = first[:most]
                self._out[0] = first[most:]
        elif self._finishing:
            self._finishing = False
            piece = b""
        else:
            return
        self._flying = True
        world = self.network.world
        due_ns = max(world.now_ns, link.stalled_until_ns) + link.delay_ns
        current = world.current
        if current is not None:  # the process's clock is ahead of the world's
            due_ns = max(due_ns, current.local_ns + link.delay_ns)
        world.at(due_ns, self._landed, piece)

    def _landed(self, piece: bytes) -> None:
        self._flying = False
        if self.reset or self.peer.vanished:
            return
        world = self.network.world
        if self.link.stalled_until_ns > world.now_ns:
            self._flying = True
            world.at(self.link.stalled_until_ns + self.link.delay_ns, self._landed, piece)
            return
        peer = self.peer
        world.crossed(0 if self.link.local else 2 * self.link.number + self.side, piece)
        self.unsent_bytes -= len(piece)
        if peer.closed:
            if piece:
                self._lose()  # no one reads the peer's end any more
                return
        elif piece:
            peer._in.append(piece)
            peer.unread_bytes += len(piece)
            peer._tell()
        else:
            peer.ended = True
            peer._tell()
        if self.wants_room and self.room_bytes >= min(self.out_limit // 3, 64 * 1024):
            self.wants_room = False
            if self.owner is not None:
                self.owner.sent(self)
            elif self.file is not None:
                self.file.writable()
        self._fly()
        if self.closed and not self._flying and not self._out:
            self.network.forget(self)

    # -- receiving -------------------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """Whether a read would return anything."""
        return bool(self._in) or self.ended or self.reset

    def take(self, most: int = 1 << 30) -> bytes:
        """Takes up to `most` of the bytes that have arrived; empty: there are none."""
        pieces = self._in
        if not pieces:
            return b""
        if len(pieces) == 1 and len(pieces[0]) <= most:
            data = pieces.popleft()
        else:
            taken = []
            left = most
            while pieces and left:
                piece = pieces[0]
                if len(piece) <= left:
                    pieces.popleft()
                else:
                    pieces[0] = piece[left:]
                    piece = piece[:left]
                taken.append(piece)
                left -= len(piece)
            data = b"".join(taken)
        self.unread_bytes -= len(data)
        self.peer._fly()
        return data

    def peek(self, most: int) -> bytes:
        """The bytes that `take` would take."""
        return b"".join(self._in)[:most]

    def _tell(self) -> None:
        if self.owner is not None:
            self.owner.received(self)
        elif self.file is not None:
            self.file.readable()

    # -- ending ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes like the kernel for the last descriptor: sends buffered bytes, but resets if some were not read."""
        if self.closed:
            return
        if self._in and not self.reset:
            self.abort()
            return
        self.closed = True
        self.file = None
        self.finish()
        self.network.world.after(GONE_NS, self.peer._find_out)
        if self.reset or self.peer.vanished or (not self._flying and not self._out):
            self.network.forget(self)

    def vanish(self) -> None:
        """Loses power: the peer is not notified."""
        if self.closed:
            return
        self.closed = self.vanished = True
        self._finishing = False
        self._out.clear()
        self._in.clear()
        self.network.forget(self)
        self.network.world.after(GONE_NS, self.peer._find_out)

    def abort(self) -> None:
        """Resets the connection."""
        if self.closed:
            return
        self.closed = True
        self.file = None
        self._out.clear()
        self._in.clear()
        self.unsent_bytes = 0
        self.network.forget(self)
        if not self.reset:
            self.reset = True
            delay_ns = self.link.delay_ns
            self.network.world.after(delay_ns, self.peer._lose)

    def _lose(self) -> None:
        """A reset has arrived."""
        if self.reset:
            return
        self.reset = True
        self._out.clear()
        self.unsent_bytes = 0
        if self.closed:
            self.network.forget(self)
        elif self.owner is not None:
            self.owner.lost(self)
        elif self.file is not None:
            self.file.readable()

    def _find_out(self) -> None:
        """Notices, if it sends keep-alive probes, that the peer was closed long ago."""
        if self.asks_for_life and not self.closed:
            self._lose()

    def gone(self, mask: int) -> int:
        """The end states that poll(2) reports for this end."""
        found = 0
        if self.reset:
            found |= select.POLLHUP | select.POLLERR
        if self.ended:
            found |= select.POLLRDHUP
        if self.ended and self.finished:
            found |= select.POLLHUP
        return found & (mask | select.POLLHUP | select.POLLERR)


class File:
    """An open file of a process, to which its descriptors refer.

    Attributes:
        end, listening: the connection's end, or the port.
        messages: messages that have arrived, in a pair of sockets for whole messages.
        references: the number of descriptors, including copies that are on their way to another process.
        process: the process whose loop has its readers and writers.
    """

    __slots__ = (
        "_read_posted",
        "asks_for_life",
        "end",
        "listening",
        "messages",
        "network",
        "pair",
        "process",
        "reader",
        "references",
        "transport",
        "writer",
    )

    def __init__(self, network: Network, *, end: End | None = None, listening: Port | None = None) -> None:
        self.network = network
        self.end = end
        self.listening = listening
        self.messages: deque[tuple[bytes, list[File]]] | None = None
        self.pair: File | None = None
        self.references = 0
        self.asks_for_life = False
        self.process: Process | None = None
        self.transport: Any = None
        self.reader: tuple[Callable[..., object], tuple[Any, ...]] | None = None
        self.writer: tuple[Callable[..., object], tuple[Any, ...]] | None = None
        self._read_posted = False
        if end is not None:
            end.file = self
        if listening is not None:
            listening.file = self

    @property
    def has_input(self) -> bool:
        """Whether a read would return anything."""
        if self.end is not None:
            return self.end.readable
        if self.listening is not None:
            return bool(self.listening.backlog)
        return bool(self.messages) or self.pair is None

    def readable(self) -> None:
        """Input has arrived: notifies the reader."""
        if self.transport is not None:
            self.transport.on_readable()
        elif self.reader is not None and not self._read_posted and self.process is not None:
            self._read_posted = True
            self.process.post(self._read)

    def _read(self) -> None:
        self._read_posted = False
        if self.reader is not None and self.has_input:
            call, args = self.reader
            call(*args)
            if self.has_input:
                self.readable()

    def writable(self) -> None:
        """There is room to send: notifies the writer."""
        if self.transport is not None:
            self.transport.on_writable()
        elif self.writer is not None and self.process is not None:
            self.process.post(self._write)

    def _write(self) -> None:
        if self.writer is not None:
            call, args = self.writer
            call(*args)

    def release(self) -> None:
        """Removes one reference."""
        self.references -= 1
        if self.references:
            return
        self.reader = self.writer = None
        if self.end is not None:
            self.end.close()
        if self.listening is not None:
            self.listening.close()
        if self.messages is not None:
            for _, files in self.messages:
                for file in files:
                    file.release()
            self.messages.clear()
        if self.pair is not None:
            other, self.pair = self.pair, None
            other.pair = None
            self.network.world.after(20_000, other.readable)


class Port:
    """A port on which a process or a model listens.

    Attributes:
        accept: called at once with each end, if a model listens; None: ends wait in the backlog for a process.
    """

    __slots__ = ("accept", "address", "backlog", "file", "most", "network")

    def __init__(
        self, network: Network, address: tuple[str, int], accept: Callable[[End], None] | None = None
    ) -> None:
        self.network = network
        self.address = address
        self.accept = accept
        self.backlog: deque[End] = deque()
        self.most = 1024
        self.file: File | None = None

    def close(self) -> None:
        """Stops listening, and resets waiting connections."""
        if self.network.ports.get(self.address) is self:
            del self.network.ports[self.address]
        for end in self.backlog:
            end.abort()
        self.backlog.clear()


class Network:
    """All links, ports and descriptors.

    Attributes:
        ports: by address.
        names: addresses by host name.
        ends: ends that are still in use.
        silent: addresses that never respond.
    """

    def __init__(
        self,
        world: World,
        *,
        most_delay_ns: int = 2 * NS_PER_MS,
        most_piece_bytes: int = 64 * 1024,
        buffer_bytes: int = 256 * 1024,
    ) -> None:
        """Creates a network without connections.

        Args:
            world: the world.
            most_delay_ns: the longest delay of a link.
            most_piece_bytes: the largest piece of a link.
            buffer_bytes: size of the two buffers of each end.
        """
        self.world = world
        self.dice = world.dice("network")
        self.most_delay_ns = most_delay_ns
        self.most_piece_bytes = most_piece_bytes
        self.buffer_bytes = buffer_bytes
        self.ports: dict[tuple[str, int], Port] = {}
        self.names: dict[str, str] = {}
        self.files: dict[int, File] = {}
        self.ends: dict[End, None] = {}
        self.silent: set[tuple[str, int]] = set()
        self._next_descriptor = FIRST_DESCRIPTOR
        self._next_link = 0
        self._next_port = 40_000

    # -- connections -----------------------------------------------------------------------------------------

    def link(self, *, local: bool = False) -> Link:
        """A new link; `local`: between processes of one machine."""
        self._next_link += 1
        dice = self.dice
        if local:
            return Link(self._next_link, dice.randrange(5_000, 60_000), 1 << 20, local=True)
        delay_ns = dice.randrange(50_000, self.most_delay_ns)
        piece_bytes = 1 << dice.randrange(6, 20) if dice.random() < 0.15 else self.most_piece_bytes
        # Only one piece at a time is on its way, so the piece's size determines how much a link carries per second.
        least_bytes = LEAST_BYTES_PER_S * delay_ns // NS_PER_S
        return Link(self._next_link, delay_ns, max(64, piece_bytes, least_bytes))

    def pair(self, link: Link, ours: tuple[str, int], theirs: tuple[str, int]) -> tuple[End, End]:
        """Creates both ends of a connection. The first one is the connecting side's."""
        one, other = End(self, link, 0, ours), End(self, link, 1, theirs)
        one.peer, other.peer = other, one
        self.ends[one] = self.ends[other] = None
        return one, other

    def forget(self, end: End) -> None:
        """Removes an end that is no longer in use."""
        self.ends.pop(end, None)

    def connect(
        self,
        ip: str,
        address: tuple[str, int],
        connected: Callable[[End], None],
        refused: Callable[[OSError], None],
    ) -> Callable[[], None]:
        """Starts a connection; the result comes later.

        Args:
            ip: address of the connecting side.
            address: the address to connect to.
            connected, refused: called with the result.

        Returns:
            A function that gives up.
        """
        link = self.link()
        self._next_port = 40_000 + (self._next_port - 40_000 + 1) % 20_000
        ours = (ip, self._next_port)
        state = {"over": False}

        def arrive() -> None:
            port = self.ports.get(address)
            if state["over"] or address in self.silent:
                return
            if port is None or len(port.backlog) >= port.most:
                self.world.after(link.delay_ns, refuse)
                return
            mine, other = self.pair(link, ours, address)
            self.world.after(link.delay_ns, answer, mine)
            if port.accept is not None:
                port.accept(other)
            else:
                port.backlog.append(other)
                if port.file is not None:
                    port.file.readable()

        def refuse() -> None:
            if not state["over"]:
                state["over"] = True
                refused(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))

        def answer(mine: End) -> None:
            if state["over"]:
                mine.abort()
                return
            state["over"] = True
            connected(mine)

        def give_up() -> None:
            state["over"] = True

        self.world.after(link.delay_ns, arrive)
        return give_up

    def listen(self, address: tuple[str, int], accept: Callable[[End], None]) -> Port:
        """A model listens on an address."""
        port = self.ports[address] = Port(self, address, accept)
        return port

    # -- descriptors -----------------------------------------------------------------------------------------

    def open(self, file: File, process: Process | None) -> int:
        """Opens a descriptor of a process for a file."""
        self._next_descriptor += 1
        descriptor = self._next_descriptor
        self.files[descriptor] = file
        file.references += 1
        if process is not None:
            file.process = process
            process.descriptors.add(descriptor)
        return descriptor

    def close(self, descriptor: int, process: Process | None) -> None:
        """Closes a descriptor."""
        file = self.files.pop(descriptor, None)
        if process is not None:
            process.descriptors.discard(descriptor)
        if file is not None:
            file.release()

    def file(self, descriptor: int) -> File:
        """The file of a descriptor.

        Raises:
            OSError: the descriptor is not open.
        """
        try:
            return self.files[descriptor]
        except KeyError:
            raise OSError(errno.EBADF, "Bad file descriptor") from None

    def process_ended(self, process: Process) -> None:
        """Closes all descriptors of a process."""
        for descriptor in sorted(process.descriptors):
            file = self.files[descriptor]
            if file.transport is not None and file.process is process:
                file.transport = None
            self.close(descriptor, process)

    # -- system calls ----------------------------------------------------------------------------------------

    def ioctl(self, descriptor: int, request: int, argument: Any = 0, *mutate: Any) -> Any:
        """ioctl(2) of sockets. For a real descriptor the real call is made."""
        if descriptor < FIRST_DESCRIPTOR:
            return _REAL_IOCTL(descriptor, request, argument, *mutate)
        end = self.file(descriptor).end
        found = 0
        if end is not None:
            if request == termios.TIOCOUTQ:
                found = end.unsent_bytes + (1 if end.finished and not end.reset and end.unsent_bytes else 0)
            elif request == termios.FIONREAD:
                found = end.unread_bytes
            elif request == _SIOCOUTQNSD:
                found = max(0, end.unsent_bytes - end.link.piece_bytes)
        argument[0] = found
        return 0

    def poll(self) -> Poll:
        """The object that `select.poll()` returns."""
        return Poll(self)

    # -- pairs of sockets ------------------------------------------------------------------------------------

    def socketpair(
        self, _family: int = socket.AF_UNIX, kind: int = socket.SOCK_STREAM, _proto: int = 0
    ) -> tuple[SimSocket, SimSocket]:
        """socketpair(2)."""
        process = self.world.current
        if kind == socket.SOCK_SEQPACKET:
            one, other = File(self), File(self)
            one.messages, other.messages = deque(), deque()
            one.pair, other.pair = other, one
        else:
            ends = self.pair(self.link(local=True), ("", 0), ("", 0))
            for each in ends:
                each.in_limit = each.out_limit = 16 * 1024 * 1024
            one, other = (File(self, end=each) for each in ends)
        found = [
            SimSocket(self, socket.AF_UNIX, kind, descriptor=self.open(file, process))
            for file in (one, other)
        ]
        return found[0], found[1]

    def send_fds(self, sock: SimSocket, buffers: Iterable[bytes], descriptors: Sequence[int], *_: Any) -> int:
        """Sends a message with descriptors."""
        data = b"".join(buffers)
        pair = sock.file.pair
        if pair is None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        files = [self.file(each) for each in descriptors]
        for file in files:
            file.references += 1
        self.world.after(20_000, self._message, pair, data, files)
        return len(data)

    def _message(self, to: File, data: bytes, files: list[File]) -> None:
        self.world.crossed(0, data)
        if to.messages is None or not to.references:
            for file in files:
                file.release()
            return
        to.messages.append((data, files))
        to.readable()

    def recv_fds(self, sock: SimSocket, _size: int, _most: int, *_: Any) -> tuple[bytes, list[int], int, Any]:
        """Receives a message with descriptors."""
        file = sock.file
        assert file.messages is not None
        if not file.messages:
            if file.pair is None:
                return b"", [], 0, None
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        data, files = file.messages.popleft()
        process = self.world.current
        descriptors = [self.open(each, process) for each in files]
        for each in files:
            each.references -= 1  # the reference of the copy on its way
        return data, descriptors, 0, None


class Poll:
    """poll(2), without waiting."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._asked: dict[int, int] = {}

    def register(self, descriptor: int, mask: int) -> None:
        """Adds a descriptor and the events to report."""
        self._asked[descriptor] = mask

    def poll(self, _timeout: float = 0) -> list[tuple[int, int]]:
        """The events of all descriptors."""
        found = []
        for descriptor, mask in self._asked.items():
            file = self._network.files.get(descriptor)
            happened = select.POLLNVAL if file is None else file.end.gone(mask) if file.end is not None else 0
            if happened:
                found.append((descriptor, happened))
        return found


class SimSocket:
    """A socket of a process."""

    def __init__(
        self,
        network: Network,
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,
        *,
        descriptor: int = -1,
    ) -> None:
        self.network = network
        self.family = family
        self.type = type
        self.proto = 0
        self._descriptor = descriptor
        self._timeout_s: float | None = None
        self._bound: tuple[str, int] | str = ("0.0.0.0", 0)
        self._process = network.world.current
        if descriptor < 0:
            self._descriptor = network.open(File(network), self._process)

    @property
    def file(self) -> File:
        """The file of its descriptor."""
        return self.network.file(self._descriptor)

    @property
    def _end(self) -> End:
        end = self.file.end
        if end is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return end

    def fileno(self) -> int:
        """Its descriptor."""
        return self._descriptor

    def detach(self) -> int:
        """Its descriptor, which from now on belongs to the caller."""
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def close(self) -> None:
        """Closes it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self.network.close(descriptor, self._process)

    def __enter__(self) -> SimSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def setblocking(self, blocking: bool) -> None:
        """Sets whether a read waits."""
        self._timeout_s = None if blocking else 0.0

    def settimeout(self, timeout_s: float | None) -> None:
        """Sets how long a read waits."""
        self._timeout_s = timeout_s

    def gettimeout(self) -> float | None:
        """See `settimeout`."""
        return self._timeout_s

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Sets keep-alive probes; SO_LINGER with `_ON_RESET` resets the connection. Ignores other options."""
        file = self.file
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            file.asks_for_life = bool(value)
            if file.end is not None:
                file.end.asks_for_life = bool(value)
        resets = (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER) and value == _ON_RESET
        if resets and file.end is not None:
            file.end.abort()

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        """Memory of the socket, and the peer's credentials."""
        if option == _SO_MEMINFO:
            end = self._end
            return struct.pack("=9I", 0, end.in_limit, 0, end.out_limit, 0, end.unsent_bytes, 0, 0, 0)
        if option == socket.SO_PEERCRED:
            return struct.pack("3i", 1, os.geteuid(), 0)[:size]
        return 0

    def getsockname(self) -> Any:
        """Its address."""
        file = self.file
        if file.end is not None:
            return file.end.address
        return file.listening.address if file.listening is not None else self._bound

    def getpeername(self) -> Any:
        """The peer's address."""
        end = self._end
        if end.reset:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return end.peer.address

    def bind(self, address: Any) -> None:
        """Binds to an address.

        Raises:
            OSError: the address is in use.
        """
        network = self.network
        if isinstance(address, str):
            self._bound = address
            return
        host, port = address[:2]
        while not port or ((host, port) in network.ports and not address[1]):
            network._next_port += 1
            port = network._next_port
        if (host, port) in network.ports:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._bound = (host, port)

    def listen(self, _backlog: int = 0) -> None:
        """Starts listening."""
        network, file = self.network, self.file
        if file.listening is not None:
            return
        address = self._bound if isinstance(self._bound, tuple) else (self._bound, 0)
        port = Port(network, address)
        network.ports[address] = port
        file.listening = port
        port.file = file

    def _next_accepted(self) -> End:
        listening = self.file.listening
        if listening is None or not listening.backlog:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        end = listening.backlog.popleft()
        if end.reset:
            raise ConnectionAbortedError(errno.ECONNABORTED, "Software caused connection abort")
        return end

    def accept(self) -> tuple[SimSocket, Any]:
        """Accepts the next connection."""
        end = self._next_accepted()
        file = File(self.network, end=end)
        file.asks_for_life = end.asks_for_life = self.file.asks_for_life
        descriptor = self.network.open(file, self.network.world.current)
        sock = type(self)(self.network, self.family, self.type, descriptor=descriptor)
        return sock, end.peer.address

    def send(self, data: bytes) -> int:
        """Sends as many of the bytes as there is room for."""
        sent = self._end.send(bytes(data))
        if data and not sent:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return sent

    def sendall(self, data: bytes) -> None:
        """Sends all bytes. Never waits, because buffers of pairs are large."""
        self.send(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receives bytes. Waits as `settimeout` says.

        Raises:
            OSError: nothing has arrived in time, or the connection was reset.
        """
        end = self._end
        if not end.readable and self._timeout_s != 0.0:
            self._wait(end)
        if flags & socket.MSG_PEEK:
            data = end.peek(size)
        else:
            data = end.take(size)
        if data or end.ended:
            return data
        if end.reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if self._timeout_s:
            raise TimeoutError("timed out")
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def _wait(self, end: End) -> None:
        """Stops the process until something arrives; all others continue."""
        world = self.network.world
        process = world.current
        assert process is not None
        stopped: Any = process  # of `HostedProcess`
        until_ns = max(world.now_ns, process.local_ns) + int((self._timeout_s or 3600.0) * 1e9)
        with stopped.stopped():
            world.run(until_ns, lambda: end.readable)
        process.local_ns = max(process.local_ns, world.now_ns)


_REAL_IOCTL: Final = fcntl.ioctl


class Transport:
    """An asyncio transport that behaves like uvloop's.

    Attributes:
        tap: gets the bytes that are read and written; None: no tap.
        on_lost: called when the transport has ended; None: not called.
    """

    READ_BYTES = 256_000

    def __init__(self, process: Process, sock: SimSocket, protocol: Any) -> None:
        """Prepares a transport of the process's loop; `start` begins to call the protocol."""
        self._process = process
        self._sock = sock
        self._file = sock.file
        self._end = sock._end
        self._file.transport = self
        self._file.process = process
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._paused_protocol = False
        self._reading = False
        self._read_posted = False
        self._eof_taken = False
        self._closing = False
        self._write_ended = False
        self._lost = False
        self.tap: Callable[[bool, bytes], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self.set_protocol(protocol)

    def start(self) -> None:
        """Calls `connection_made` and begins to read."""
        self._reading = True
        self._protocol.connection_made(self)
        self.on_readable()

    # -- asyncio's transport ---------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio."""
        if name == "socket":
            return default if self._lost else self._sock
        if name == "peername":
            return self._end.peer.address
        return self._end.address if name == "sockname" else default

    def set_protocol(self, protocol: Any) -> None:
        """See asyncio."""
        self._protocol = protocol
        self._fitted = hasattr(protocol, "get_buffer")

    def get_protocol(self) -> Any:
        """See asyncio."""
        return self._protocol

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._closing

    def is_reading(self) -> bool:
        """See asyncio."""
        return self._reading

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self._buffered

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low
        self._look_at_buffer()

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return True

    def pause_reading(self) -> None:
        """See asyncio."""
        self._reading = False

    def resume_reading(self) -> None:
        """See asyncio."""
        if not self._closing and not self._reading:
            self._reading = True
            self.on_readable()

    def write(self, data: bytes) -> None:
        """See asyncio."""
        if not data:
            return
        data = bytes(data)
        if self.tap is not None:
            self.tap(True, data)
        if self._write_ended or self._lost:
            return
        if not self._buffer:
            try:
                sent = self._end.send(data)
            except OSError as exc:
                self._fail(exc)
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._buffer.append(data)
        self._buffered += len(data)
        self._look_at_buffer()

    def writelines(self, chunks: Iterable[bytes]) -> None:
        """See asyncio."""
        self.write(b"".join(chunks))

    def write_eof(self) -> None:
        """See asyncio."""
        if not self._write_ended:
            self._write_ended = True
            if not self._buffer:
                self._end.finish()

    def close(self) -> None:
        """See asyncio: buffered bytes are still sent."""
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if not self._buffer:
            self._process.call_soon(self._lose, None)

    def abort(self) -> None:
        """See asyncio."""
        self._fail(None)

    # -- the network -----------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Input has arrived."""
        if self._reading and not self._read_posted and self._end.readable:
            self._read_posted = True
            self._process.post(self._read)

    def on_writable(self) -> None:
        """There is room to send."""
        self._process.post(self._flush)

    def _read(self) -> None:
        self._read_posted = False
        end = self._end
        if not self._reading or self._lost:
            return
        if self._fitted:
            buffer = self._protocol.get_buffer(-1)
            data = end.take(len(buffer))
            if data:
                buffer[: len(data)] = data
        else:
            data = end.take(self.READ_BYTES)
        if data:
            if self.tap is not None:
                self.tap(False, data)
            if self._fitted:
                self._protocol.buffer_updated(len(data))
            else:
                self._protocol.data_received(data)
        elif end.reset:
            self._fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        elif end.ended and not self._eof_taken:
            self._eof_taken = True
            received = getattr(self._protocol, "eof_received", None)
            if received is None or not received():
                self.close()
            return
        if self._reading and not self._eof_taken:
            self.on_readable()

    def _flush(self) -> None:
        if self._lost:
            return
        buffer = self._buffer
        try:
            while buffer:
                data = buffer[0]
                sent = self._end.send(data)
                self._buffered -= sent
                if sent < len(data):
                    buffer[0] = data[sent:]
                    break
                buffer.popleft()
        except OSError as exc:
            self._fail(exc)
            return
        self._look_at_buffer()
        if not buffer:
            if self._write_ended:
                self._end.finish()
            if self._closing:
                self._lose(None)

    def _look_at_buffer(self) -> None:
        if not self._paused_protocol and self._buffered > self._high:
            self._paused_protocol = True
            self._protocol.pause_writing()
        elif self._paused_protocol and self._buffered <= self._low:
            self._paused_protocol = False
            self._protocol.resume_writing()

    def _fail(self, exc: OSError | None) -> None:
        if self._lost:
            return
        self._closing = True
        self._reading = False
        self._buffer.clear()
        self._buffered = 0
        if exc is None:
            self._end.abort()
        self._process.call_soon(self._lose, exc)

    def _lose(self, exc: OSError | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._file.transport = None
        try:
            self._protocol.connection_lost(exc)
        finally:
            if self.on_lost is not None:
                self.on_lost()
            with suppress(OSError):
                self._sock.close()
