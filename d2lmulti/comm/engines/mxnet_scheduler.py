"""The scheduler of MXNet's parameter server: it makes the others known to each other.

It touches no tensor, so MXNet's library will do without its Python, which would take a
second to import. Chapter: *parameter_server*.
"""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path

from ...errors import BackendNotInstalled


def schedule() -> None:
    """Be the scheduler until the workers are done.

    Raises `BackendNotInstalled` where there is no MXNet, `OSError` where its library
    cannot be loaded, and `RuntimeError` with its own words when it fails.
    """
    package = find_spec("mxnet")
    if package is None or package.origin is None:
        raise BackendNotInstalled("expected MXNet to be installed, got none")
    os.environ["DMLC_ROLE"] = "scheduler"
    library = ctypes.CDLL(str(Path(package.origin).with_name("libmxnet.so")))
    library.MXGetLastError.restype = ctypes.c_char_p
    store = ctypes.c_void_p()
    command = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    ignore = command(lambda *_: None)  # commands go to servers
    if library.MXKVStoreCreate(b"dist", ctypes.byref(store)) or (
        library.MXKVStoreRunServer(store, ignore, None)
    ):
        raise RuntimeError(library.MXGetLastError().decode())
