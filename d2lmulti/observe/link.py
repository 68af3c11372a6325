"""A modeled link between two devices: a latency and a bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..checks import check_number, check_positive


@dataclass(frozen=True)
class Link:
    """A link: a message takes `latency` seconds, then its bytes over `bandwidth`."""

    latency: float = 0.0  #: seconds per message
    bandwidth: float = math.inf  #: bytes per second, in one direction

    def __post_init__(self) -> None:
        check_number("latency", self.latency, min=0, hint="give seconds")
        if self.bandwidth is not math.inf:
            check_positive("bandwidth", self.bandwidth, "give bytes per second")

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of one message of `nbytes` bytes on an idle link.

        >>> Link(latency=1e-6, bandwidth=1e9).seconds(1000)
        2e-06
        """
        check_number("nbytes", nbytes, min=0)
        return self.latency + nbytes / self.bandwidth
