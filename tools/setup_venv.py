"""Make the virtual environment that every make target runs in, and do nothing twice.

    python tools/setup_venv.py full    # .venv: PyTorch, MXNet, Paddle, TensorFlow
    python tools/setup_venv.py torch   # .venv-torch: PyTorch alone, NumPy 2

Runs before anything is installed, and on any Python, if only to refuse it: hence the
standard library alone and no new syntax. A finished environment carries a stamp, the
hash of what it was made from; one without it is taken up again where it was left.
"""

import argparse
import hashlib
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
INPUTS = ("requirements*.txt", "constraints*.txt", "pyproject.toml")


class Setup(NamedTuple):
    """One of the two environments."""

    folder: str
    requirements: str
    constraints: str
    imports: str
    summary: str


SETUPS = {
    "full": Setup(
        ".venv",
        "requirements.txt",
        "constraints.txt",
        # TensorFlow last: MXNet crashes when it is loaded after it.
        "torch, mxnet, paddle, tensorflow, jupyter_book, nbval",
        "PyTorch, MXNet, Paddle and TensorFlow; 4 GB on disk, 8 GB with CUDA",
    ),
    "torch": Setup(
        ".venv-torch",
        "requirements-torch.txt",
        "constraints-torch.txt",
        "torch, jupyter_book, nbval",
        "PyTorch alone, NumPy 2; 2 GB on disk, 6 GB with CUDA",
    ),
}

# What MXNet and Paddle expect from the system, and the wheel that also has it.
BORROWED = {
    "libgomp.so.1": "torch/lib/libgomp.so.1",
    "libquadmath.so.0": "paddle/libs/libquadmath.so.0",
}


class SetupError(Exception):
    """The set-up cannot go on; the message says why and what to do."""


def refusal(setup, version, system, machine):
    """Say in one sentence why this Python cannot hold the set-up, or return None."""
    here = f"Python {version[0]}.{version[1]} on {system} {machine}"
    x86 = machine.lower() in ("x86_64", "amd64")
    if setup == "full" and not (version == (3, 11) and system == "Linux" and x86):
        return (
            "The three frameworks together need Python 3.11 on Linux x86-64 (MXNet "
            f"1.9.1 wants a NumPy that has no wheels beyond), and this is {here}; name "
            "a Python 3.11 with PYTHON=/path/to/python3.11, or take PyTorch alone: "
            "make book SETUP=torch, make test SETUP=torch."
        )
    if system == "Darwin" and x86:
        return "PyTorch 2.13 has no wheels for Macs with Intel processors; use Docker."
    if not (3, 11) <= version <= (3, 14):
        return (
            "The book with PyTorch alone needs Python 3.11 to 3.14, and this is "
            f"{here}; name another one with PYTHON=/path/to/python3."
        )
    return None


def fingerprint(setup, version, root):
    """Hash all that decides what an environment holds: the files and the Python."""
    digest = hashlib.sha256(repr((setup, version)).encode())
    for pattern in INPUTS:
        for path in sorted(root.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def advice(said):
    """Turn the failures people really meet into what to type next."""
    missing = re.search(r"(lib\S+\.so\S*): cannot open shared object", said)
    if missing:
        return f"Install the package of your system that holds {missing.group(1)}."
    if "ensurepip" in said:
        version = "{}.{}".format(*sys.version_info)
        return f"On Debian and Ubuntu: sudo apt-get install python{version}-venv"
    if "No space left" in said:
        return "The disk is full."
    if re.search(r"NewConnectionError|name resolution|[Tt]imed out|Timeout", said):
        return "The network did not answer; the next run goes on from here."
    return ""


def pip_step(line):
    """Translate a line of pip's into a few words, or into nothing."""
    found = re.match(r"\s*Downloading (?:.*/)?([\w.]+?)-\d\S* \(([\d.]+ [MG]B)", line)
    if found:
        return f"downloading {found.group(1)} ({found.group(2)})"
    found = re.match(r"Collecting ([\w.-]+)", line)
    if found:
        return f"looking up {found.group(1)}"
    if line.startswith("Installing collected packages") and "," in line:
        return f"unpacking {line.count(',') + 1} packages"
    return ""


class Progress:
    """One line a step: its number, what it does, how long it took."""

    def __init__(self, steps, log):
        self.steps, self.log = steps, log
        self.number, self.width = 0, 0
        self.terminal = sys.stdout.isatty()

    def step(self, what, command=None):
        """Announce a step, run its command into the log, say how long it took."""
        self.number += 1
        self.head = f"  {self.number}/{self.steps} {what}"
        since = time.time()
        print(self.head, end="" if self.terminal else "\n", flush=True)
        if command:
            self.run(command, what)
        took = f"{time.time() - since:.0f} s"
        if self.terminal:
            print("\r" + f"{self.head} ({took})".ljust(self.width), flush=True)
        else:
            print(f"      done in {took}", flush=True)
        self.width = 0

    def note(self, text):
        """Show a passing detail; a log file gets only those that take long."""
        if self.terminal:
            line = f"{self.head}: {text}"[: shutil.get_terminal_size()[0] - 1]
            print("\r" + line.ljust(self.width), end="", flush=True)
            self.width = len(line)
        elif re.search(r"unpacking|GB|\d{3}(\.\d)? MB", text):
            print(f"      {text}", flush=True)

    def run(self, command, what):
        """Run a command; when it fails, show the end of what it said."""
        env = dict(os.environ, PYTHONUNBUFFERED="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
        said = []
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(map(str, command))}\n")
            with subprocess.Popen(
                [str(word) for word in command],
                cwd=str(ROOT),
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            ) as process:
                try:
                    for line in process.stdout:
                        log.write(line)
                        log.flush()
                        said.append("    " + line.rstrip())
                        if pip_step(line):
                            self.note(pip_step(line))
                except BaseException:
                    process.terminate()  # Ctrl-C: leave no installer running behind us
                    raise
        if process.returncode:
            tail = [f"This step failed: {what}", *said[-15:], f"    in {self.log}"]
            raise SetupError("\n".join([*tail, advice("\n".join(said))]).rstrip())


def forget_half_installed(venv):
    """Make pip install again what a killed run left: RECORD is written last."""
    for info in venv.glob("**/site-packages/*.dist-info"):
        if not (info / "RECORD").exists():
            shutil.rmtree(str(info))
    for leftover in venv.glob("**/site-packages/~*"):
        shutil.rmtree(str(leftover), ignore_errors=True)


def runs(python, code):
    """Tell whether an environment's Python is there and runs a line of code."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return python.exists() and not subprocess.call([str(python), "-c", code], **quiet)


def borrow_libraries(python, venv):
    """Where the system lacks a library, load it from a wheel whenever Python starts."""
    for packages in venv.glob("lib/python*/site-packages"):
        for name, lender in BORROWED.items():
            path = packages / lender
            pth = packages / f"borrowed-{name}.pth"
            if path.exists() and not runs(
                python, f"__import__('ctypes').CDLL({name!r})"
            ):
                load = f"os.path.exists({str(path)!r}) and ctypes.CDLL({str(path)!r})"
                pth.write_text(f"import ctypes, os; {load}\n")


def build(name, torch_index):
    """Bring an environment up to date; raises SetupError."""
    setup, version = SETUPS[name], tuple(sys.version_info[:2])
    venv = ROOT / setup.folder
    stamp, unfinished = venv / ".made-from", venv / ".unfinished"
    wanted = f"{ROOT}\n{fingerprint(name, version, ROOT)}"
    made_from = stamp.read_text() if stamp.exists() else ""
    if made_from == wanted:
        return
    reason = refusal(name, version, platform.system(), platform.machine())
    if reason:
        raise SetupError(reason)

    log = ROOT / "_build" / f"setup-{name}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("")
    if made_from:
        print(f"Updating {setup.folder}: what it is made from has changed.")
    else:
        print(f"Setting up {setup.folder} ({setup.summary}).")
        print("This is done once and takes 2 to 5 minutes on a good line.")
    print(f"What pip says goes to {log.relative_to(ROOT)}.", flush=True)
    progress = Progress(5 if torch_index else 4, log)
    windows = platform.system() == "Windows"
    python = venv / ("Scripts/python.exe" if windows else "bin/python")

    moved = made_from and made_from.split("\n")[0] != str(ROOT)  # paths are baked in
    if stamp.exists():
        stamp.unlink()  # from here on the environment counts as unfinished
    same_python = f"import pip, sys; sys.exit(sys.version_info[:2] != {version})"
    if runs(python, same_python) and not moved:
        if unfinished.exists():
            forget_half_installed(venv)
        progress.step("virtual environment: keeping the one that is there")
    else:
        if venv.exists():
            shutil.rmtree(str(venv))
        # Asked from inside an environment, the Python that it was made with.
        base = getattr(sys, "_base_executable", sys.executable)
        progress.step("virtual environment", [base, "-m", "venv", venv])
    unfinished.write_text("")

    pip = [python, "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    if torch_index:
        pin = re.search(r"^torch==\S+", (ROOT / setup.requirements).read_text(), re.M)
        progress.step(
            "PyTorch from the index you named",
            [*pip, "--no-deps", "--index-url", torch_index, pin.group()],
        )
    progress.step(
        "downloads and packages",
        [*pip, "-r", setup.requirements, "-c", setup.constraints],
    )
    progress.step(
        "d2lmulti itself, as a link: edits take effect at once",
        [*pip, "--no-deps", "--no-build-isolation", "-e", "."],
    )
    borrow_libraries(python, venv)
    progress.step("does it all import?", [python, "-c", f"import {setup.imports}"])
    unfinished.unlink()
    stamp.write_text(wanted)
    print(f"{setup.folder} is ready.", flush=True)


def main():
    """Read the command line; exit 1 with a plain sentence when it cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("setup", choices=sorted(SETUPS))
    parser.add_argument(
        "--torch-index",
        default=os.environ.get("TORCH_INDEX", ""),
        help="a package index to take torch from, such as that of its CPU builds",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop pip with us
    try:
        build(options.setup, options.torch_index)
    except SetupError as error:
        sys.exit(f"\n{error}")
    except KeyboardInterrupt:
        sys.exit("\nStopped; the next run goes on from here.")


if __name__ == "__main__":
    main()
