"""Until sharded parallelism imports these from `split`."""

from .split import by_device, split_in_parts

__all__ = ["by_device", "split_in_parts"]
