"""A TCP proxy that misbehaves when told to: one process a proxied endpoint, orders on its stdin.

``mend`` · ``delay MS JITTER_MS`` · ``slice`` (one byte a packet) · ``slow KBIT`` · ``cut`` (nothing passes,
nothing is said) · ``half`` (the same, and what is connected now stays so for good) · ``reset`` (once)
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import sys
from contextlib import suppress

CHUNK = 65_536


class Proxy:
    """One endpoint before another one."""

    def __init__(self, address: str, port: int) -> None:
        self._target = (address, port)
        self._delay = self._jitter = 0.0
        self._slice = False
        self._bytes_a_second: float | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._dead: set[asyncio.StreamWriter] = set()
        """Half open for good: nothing passes on them any more."""

    async def serve(self, listen: str, port: int) -> None:
        """Take connections until stdin ends."""
        server = await asyncio.start_server(self._connected, listen, port)
        loop = asyncio.get_running_loop()
        orders = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        print("listening", flush=True)
        while order := (await orders.readline()).decode().split():
            self._heed(order)
        server.close()

    def _heed(self, order: list[str]) -> None:
        match order:
            case ["mend"]:
                self._delay = self._jitter = 0.0
                self._slice, self._bytes_a_second = False, None
                self._open.set()
            case ["delay", delay, jitter]:
                self._delay, self._jitter = float(delay) / 1000, float(jitter) / 1000
            case ["slice"]:
                self._slice = True
            case ["slow", kilobits]:
                self._bytes_a_second = float(kilobits) * 125
            case ["cut"]:
                self._open.clear()
            case ["half"]:
                self._dead |= self._connections
            case ["reset"]:
                for one in list(self._connections):
                    _reset(one)
            case _:
                print(f"unknown order: {order}", file=sys.stderr)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        both = {writer, far_writer}
        self._connections |= both
        ways = [self._carry(reader, far_writer), self._carry(far_reader, writer)]
        await asyncio.wait([asyncio.create_task(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
        self._connections -= both
        self._dead -= both
        for one in both:
            _reset(one)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                if writer in self._dead:
                    await asyncio.Event().wait()
                if self._delay:
                    await asyncio.sleep(max(0.0, self._delay + random.uniform(-1, 1) * self._jitter))
                if self._bytes_a_second:
                    await asyncio.sleep(len(data) / self._bytes_a_second)
                pieces = [data[at : at + 1] for at in range(len(data))] if self._slice else [data]
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    if self._slice:
                        await asyncio.sleep(0)


def _reset(writer: asyncio.StreamWriter) -> None:
    plain = writer.get_extra_info("socket")
    if plain is not None:
        with suppress(OSError):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


if __name__ == "__main__":
    asyncio.run(Proxy(sys.argv[3], int(sys.argv[4])).serve(sys.argv[1], int(sys.argv[2])))
