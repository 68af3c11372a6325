"""Build Horovod for MXNet and PyTorch and install it beside them: `make horovod`.

Horovod comes as source. The environment's Python runs this: it takes the source from
the package index, checks its hash, sets C++17, which PyTorch's headers want, compiles
in a build environment of its own (3 to 4 minutes on two cores) and keeps the wheel, so
that the next environment need not build. Where the right build is installed, nothing
is done. It is a build for CPUs, because MXNet's wheel is one for CPUs: neither a torch
with CUDA nor an nvcc, whole or not, changes it.
"""

import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from importlib import metadata

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

CPP_17 = ("set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)")
EDITS = (  # in which file, what stands there once, and what comes in its place
    # PyTorch's headers need C++17.
    ("CMakeLists.txt", *CPP_17),
    ("horovod/torch/CMakeLists.txt", *CPP_17),
    # No look for CUDA's compiler, and no GPU operations because torch has its own.
    (
        "CMakeLists.txt",
        "check_language(CUDA)\nif(NOT CMAKE_CUDA_COMPILER)",
        "if(FALSE)",
    ),
    (
        "cmake/Modules/FindPytorch.cmake",
        'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)',
        "set(Pytorch_CUDA FALSE)",
    ),
    (
        "cmake/Modules/FindPytorch.cmake",
        'string(TOUPPER "${Pytorch_ROCM}" Pytorch_ROCM)',
        "set(Pytorch_ROCM FALSE)",
    ),
)
CHOICES = {
    "HOROVOD_WITH_MXNET": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_NVTX": "1",  # a library of the CUDA toolkit
}

# The framework before its front end, and never both front ends in one process.
WORKS = {
    name: f"import {name}, horovod.{name} as hvd; hvd.init(); hvd.shutdown()"
    for name in ("torch", "mxnet")
}
LOG = ROOT / "_build" / "horovod.log"


class CannotBuild(Exception):
    """Horovod cannot be had here; the message is one line that says why."""


def fingerprint(frameworks):
    """Hash what a built wheel depends on: source, choices, frameworks, this Python."""
    python = (sys.version_info[:2], sysconfig.get_platform(), platform.libc_ver())
    parts = (VERSION, SHA256, EDITS, CHOICES, frameworks, python)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def step(what, *command):
    """Run a command with its words in the log; one line says how long it took."""
    print(f"  {what} ...", end="", flush=True)
    since = time.time()
    with LOG.open("a", encoding="utf-8") as log:
        failed = subprocess.call(list(map(str, command)), stdout=log, stderr=log)
    print(f" {time.time() - since:.0f} s", flush=True)
    if failed:
        raise CannotBuild(f"{what} failed; {LOG.relative_to(ROOT)} says why")


def compile_wheel(work):
    """Get the old tools and the checked source, edit and compile it; return a wheel."""
    step("build environment", sys.executable, "-m", "venv", work / "env")
    # After its own packages those of the book, .pth files included.
    (own,) = (work / "env").glob("lib/python*/site-packages")
    book = sysconfig.get_path("purelib")
    (own / "book.pth").write_text(f"import site; site.addsitedir({book!r})\n")
    bin, wanted = work / "env" / "bin", work / "wanted.txt"
    pip = [bin / "python", "-m", "pip", "--no-input"]
    lock = ROOT / "requirements-horovod.lock"
    step("build tools", *pip, "install", "--quiet", "--require-hashes", "-r", lock)
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    options += ["--require-hashes", "-d", work, "-r", wanted]
    step("source", *pip, "download", *options)
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(work, filter="data")
    source = work / f"horovod-{VERSION}"
    for name, old, new in EDITS:
        text = (source / name).read_text()
        if text.count(old) != 1:
            raise CannotBuild(f"expected {old!r} once in {name} of Horovod {VERSION}")
        (source / name).write_text(text.replace(old, new))
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        del os.environ[name]  # a GPU build would want an MXNet for GPUs
    os.environ.update(CHOICES, HOROVOD_CMAKE=str(bin / "cmake"))
    # One compiler a core, with 2 GB each, whatever a calling make was told.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    jobs = max(1, min(len(os.sched_getaffinity(0)), memory // 2**31))
    os.environ["MAKEFLAGS"] = f"-j{jobs}"
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", work / "wheel"]
    step("compiling (3 to 4 minutes on two cores)", *pip, "wheel", *options, source)
    (wheel,) = (work / "wheel").glob("horovod-*.whl")
    return wheel


def build():
    """Make sure that this environment has the right Horovod; raises CannotBuild."""
    try:
        frameworks = {name: metadata.version(name) for name in ("torch", "mxnet")}
    except metadata.PackageNotFoundError as error:
        raise CannotBuild(f"it needs {error.name}; use the full set-up") from None
    key = fingerprint(frameworks)
    stamp = pathlib.Path(sys.prefix) / ".horovod-made-from"
    if stamp.exists() and stamp.read_text() == key:
        return
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    which = " and ".join(f"{name} {version}" for name, version in frameworks.items())
    print(f"Horovod {VERSION} for {which}, on CPUs:", flush=True)
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    kept = pathlib.Path(cache) / "d2lmulti" / "horovod" / key
    wheel = next(kept.glob("*.whl"), None)
    if not wheel:
        if not shutil.which("make") or not shutil.which(os.environ.get("CXX", "g++")):
            raise CannotBuild("it is compiled with g++ and make; install them")
        with tempfile.TemporaryDirectory(prefix="horovod-") as work:
            built = compile_wheel(pathlib.Path(work))
            kept.mkdir(parents=True, exist_ok=True)
            partial = kept / f"{built.name}.{os.getpid()}"
            shutil.copy(built, partial)
            wheel = partial.rename(kept / built.name)
    pip = [sys.executable, "-m", "pip", "--no-input"]
    step("installing", *pip, "install", "--no-deps", "--force-reinstall", wheel)
    try:
        for framework, code in WORKS.items():
            step(f"does it run with {framework}?", sys.executable, "-c", code)
    except CannotBuild:
        step("removing it again", *pip, "uninstall", "--yes", "horovod")
        raise
    stamp.write_text(key)


if __name__ == "__main__":
    try:
        build()
    except CannotBuild as error:
        if sys.argv[1:] != ["--if-possible"]:
            sys.exit(f"Horovod cannot be built: {error}")
        print(f"Going on without Horovod and its tests: {error}; next: make horovod")
