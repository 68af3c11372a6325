"""Build Horovod for MXNet and PyTorch and install it beside them: `make horovod`.

Horovod comes as source. The environment's Python runs this: it takes the source from
the package index, checks its hash, sets C++17, which PyTorch's headers want, compiles
in a build environment of its own (3 to 4 minutes on two cores) and keeps the wheel, so
that the next environment need not build. Where the right build is installed, nothing
is done. It is a build for CPUs, because MXNet's wheel is one for CPUs.
"""

import argparse
import hashlib
import importlib.util
import os
import pathlib
import platform
import shutil
import signal
import sys
import sysconfig
import tarfile
from importlib import metadata

from setup_venv import Progress, SetupError

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

# Old build tools for an old source; they never enter the environment of the book.
BUILD_TOOLS = ("cmake==3.31.6", "setuptools==69.5.1", "wheel==0.45.1")

# PyTorch's headers need C++17, and this source says 14.
EDITS = {
    name: ("set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)")
    for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")
}
CHOICES = {
    "HOROVOD_WITH_MXNET": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}

# The framework before its front end, and never both front ends in one process.
WORKS = {
    name: f"import {name}, horovod.{name} as hvd; hvd.init(); hvd.shutdown()"
    for name in ("torch", "mxnet")
}
NO_COMPILER = (
    "Horovod has to be compiled, and {} was not found; install a C++ compiler and make "
    "(on Debian and Ubuntu: sudo apt-get install g++ make), then run: make horovod"
)


def fingerprint(frameworks):
    """Hash what a built wheel depends on: source, choices, frameworks, this Python."""
    python = (sys.version_info[:2], sysconfig.get_platform(), platform.libc_ver())
    parts = (VERSION, SHA256, EDITS, CHOICES, frameworks, python)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def frameworks_installed():
    """Name the frameworks of this environment with their versions; raise if missing."""
    try:
        return {name: metadata.version(name) for name in ("torch", "mxnet")}
    except metadata.PackageNotFoundError as error:
        raise SetupError(
            f"Horovod is built for PyTorch and MXNet, and {error.name} is not "
            "installed here; use the full set-up: make setup, make horovod"
        ) from None


def tool_missing(find=shutil.which):
    """Name what the compilation lacks on this machine, or return None."""
    compilers = [os.environ.get("CXX") or "g++", "c++", "clang++"]
    if not any(map(find, compilers)):
        return "a C++ compiler"
    return None if find("make") else "make"


def cache_folder():
    """Return the folder of the user where built wheels are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "d2lmulti" / "horovod"


def edit(source):
    """Apply EDITS to the unpacked source; raise where a text does not stand once."""
    for name, (old, new) in EDITS.items():
        path = source / name
        text = path.read_text()
        if text.count(old) != 1:
            raise SetupError(
                f"expected {old!r} once in {name} of Horovod {VERSION}, got "
                f"{text.count(old)} times; is this the source it claims to be?"
            )
        path.write_text(text.replace(old, new))


def jobs():
    """Say how many compilers may run: one a core, with 2 GB each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // 2**31))


def make_build_environment(progress, folder):
    """Make an environment with the old tools that also sees the frameworks."""
    progress.step("build environment", [sys.executable, "-m", "venv", folder])
    # After its own packages those of the book, .pth files included.
    (own,) = folder.glob("lib/python*/site-packages")
    book = sysconfig.get_path("purelib")
    (own / "book.pth").write_text(f"import site; site.addsitedir({book!r})\n")
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--no-input"]
    progress.run([*pip, "install", "--quiet", *BUILD_TOOLS], "build tools")
    return python, pip


def compile_wheel(progress, work):
    """Download, check, edit and compile; return the path of the wheel."""
    python, pip = make_build_environment(progress, work / "env")
    wanted = work / "wanted.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    download = ["download", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
    progress.step(
        "source",
        [*pip, *download, "--no-build-isolation", "-d", work, "-r", wanted],
    )
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(work, filter="data")
    source = work / f"horovod-{VERSION}"
    edit(source)
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        del os.environ[name]  # a GPU build would want an MXNet for GPUs
    os.environ.update(CHOICES, HOROVOD_CMAKE=str(python.parent / "cmake"))
    os.environ["MAKEFLAGS"] = f"-j{jobs()}"  # instead of those of a calling make
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", work / "wheel"]
    progress.step(
        "compiling (3 to 4 minutes on two cores)", [*pip, "wheel", *options, source]
    )
    (wheel,) = (work / "wheel").glob("horovod-*.whl")
    return wheel


def build(if_possible=False):
    """Make sure that this environment has the right Horovod; raises SetupError."""
    frameworks = frameworks_installed()
    key = fingerprint(frameworks)
    stamp = pathlib.Path(sys.prefix) / ".horovod-made-from"
    python = pathlib.Path(sys.executable)
    built = importlib.util.find_spec("horovod") and stamp.exists()
    if built and stamp.read_text() == key:
        return
    kept = cache_folder() / key
    if not list(kept.glob("*.whl")) and (missing := tool_missing()):
        if not if_possible:
            raise SetupError(NO_COMPILER.format(missing))
        print(f"Skipping Horovod. {NO_COMPILER.format(missing)}")
        return

    log = ROOT / "_build" / "horovod.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("")
    which = " and ".join(f"{name} {version}" for name, version in frameworks.items())
    print(f"Horovod {VERSION} for {which}. Details: {log.relative_to(ROOT)}.")
    wheels = list(kept.glob("*.whl"))
    progress = Progress(3 if wheels else 6, log)
    if not wheels:
        work = ROOT / "_build" / "horovod"
        shutil.rmtree(str(work), ignore_errors=True)
        work.mkdir()
        wheel = compile_wheel(progress, work)
        kept.mkdir(parents=True, exist_ok=True)
        partial = kept / f"{wheel.name}.{os.getpid()}"
        shutil.copy(str(wheel), str(partial))
        wheels = [partial.rename(kept / wheel.name)]  # whole or not there
        shutil.rmtree(str(work))
    install = ["install", "--no-input", "--no-deps", "--force-reinstall", *wheels]
    progress.step("installing the wheel", [python, "-m", "pip", *install])
    for framework, code in WORKS.items():
        progress.step(f"does it run with {framework}?", [python, "-c", code])
    stamp.write_text(key)
    print("Horovod is ready.", flush=True)


def main():
    """Read the command line; exit 1 with a plain sentence when it cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--if-possible",
        action="store_true",
        help="without a compiler say what to install and go on",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the compiler too
    try:
        build(options.if_possible)
    except SetupError as error:
        sys.exit(f"\n{error}")
    except KeyboardInterrupt:
        sys.exit("\nStopped; the next run begins again.")


if __name__ == "__main__":
    main()
