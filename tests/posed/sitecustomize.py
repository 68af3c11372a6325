"""Let every Python that finds this folder on PYTHONPATH see GPUs that are not there.

D2LMULTI_POSED=2 says how many. A kernel and all processes that it starts read this file
before anything else; the pose of a framework is put on when the framework is imported.
"""

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

POSES = {"torch": "posed_torch"}


class Posing(Loader):
    """Load a framework, then its pose."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        pose = importlib.import_module(POSES[module.__name__])
        pose.put_on(int(os.environ["D2LMULTI_POSED"]))


class Finder(MetaPathFinder):
    """Find a framework once more, without this finder."""

    def find_spec(self, name, path=None, target=None):
        if name not in POSES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None:
            spec.loader = Posing(spec.loader)
        return spec


if os.environ.get("D2LMULTI_POSED"):
    sys.meta_path.insert(0, Finder())
