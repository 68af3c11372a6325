"""Processes that stay: started once, then asked for one function after another.

`launch` starts processes for one function, and most of that time is the framework's
import. Functions and answers pass a socket in a folder of this user's own (mode 0700),
and both ends first prove that they know a key. Chapter: *why_not_faster*.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from multiprocessing.connection import Client, Connection, Listener
from threading import Thread
from typing import Any

import cloudpickle

from . import process_group as engines
from .launcher import _check_how, _pickled, launch, returned, unpickled

_FAMILY = "AF_PIPE" if sys.platform == "win32" else "AF_UNIX"
_LOOK_EVERY = 0.05  # seconds: whether the processes still live
_GRACE = 10.0  # seconds in which they end
_PATIENCE = 60.0  # in which the launcher says why one did


class Ranks:
    """n processes in one group: `ranks(function, *args)` runs it in each of them.

    They start at the first call, on the engine, backend and threads that `launch` would
    give them, and live until `close`, the end of a `with` block, or `timeout` seconds.
    A function finds its rank in `started()`; what it leaves in modules stays there for
    the next one. Gives what it returned, in rank order. Raises `ProcessFailed` as
    `launch` does, after which the next call starts new processes.
    """

    def __init__(
        self,
        n: int = 2,
        *,
        engine: str | None = None,
        backend: str | None = None,
        threads: int = 1,
        timeout: float = 3600.0,
    ) -> None:
        self._how = _check_how(n, engine, backend, threads, timeout)
        self._n = self._how.pop("n")
        self._run: Future[Any] | None = None
        self._connections: list[Connection] = []

    def __call__(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Run `function(*args, **kwargs)` in every process, all at the same time."""
        job = _pickled(function, args, kwargs)
        try:
            if self._run is None:
                self._start()
            for connection in self._connections:
                connection.send_bytes(job)
            answers = [self._answer(connection) for connection in self._connections]
        except (EOFError, OSError):  # one is gone, and the launcher knows why
            run = self._run
            self.close()
            if run is not None:
                run.result(_PATIENCE)
            raise
        except BaseException:  # Ctrl-C: what they answer now, nobody waits for
            self.close()
            raise
        return [returned(f"rank {i}", answer) for i, answer in enumerate(answers)]

    def _start(self) -> None:
        key = secrets.token_bytes(32)
        with Listener(family=_FAMILY, authkey=key) as listener:
            address = listener.address
            self._run = _background(launch, _serve, self._n, address, key, **self._how)
            accepted = _background(_accept, listener, self._n)
            while not accepted.done():
                if self._run.done():
                    raise EOFError
                wait([accepted, self._run], return_when=FIRST_COMPLETED)
            self._connections = accepted.result()

    def _answer(self, connection: Connection) -> bytes:
        while not connection.poll(_LOOK_EVERY):
            if self._run is None or self._run.done():
                raise EOFError
        return connection.recv_bytes()

    def close(self) -> None:
        """End the processes, if there are any."""
        run, self._run = self._run, None
        for connection in self._connections:
            connection.close()  # each takes that as the end
        self._connections = []
        if run is not None:
            wait([run], _GRACE)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _serve(address: Any, key: bytes) -> None:
    """Do what the launcher asks for, until it hangs up; runs in every process."""
    with Client(address, authkey=key) as launcher:
        launcher.send(engines.process_info().rank)
        while True:
            try:
                job = launcher.recv_bytes()
            except (EOFError, OSError):
                return
            function, args, kwargs = unpickled(job)
            answer = cloudpickle.dumps(function(*args, **kwargs))
            try:
                launcher.send_bytes(answer)
            except OSError:  # it hung up because another rank failed
                return


def _accept(listener: Listener, n: int) -> list[Connection]:
    """Give the connections to n processes, in rank order."""
    found: dict[int, Connection] = {}
    while len(found) < n:
        connection = listener.accept()
        found[connection.recv()] = connection
    return [found[rank] for rank in range(n)]


def _background(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Run it on a thread that does not keep Python from ending."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future
