"""Training in n processes: launcher, rendezvous, and communication engines.

`import d2lmulti` does not load this package. Chapter: *many_machines*.
"""

from ..errors import PeerError
from .launcher import Run, launch
from .process_group import start, started, stop
from .spawn import ProcessFailed

__all__ = ["PeerError", "ProcessFailed", "Run", "launch", "start", "started", "stop"]
