"""Make the virtual environment that every make target runs in, and do nothing twice.

    python tools/setup_venv.py full    # .venv: PyTorch, MXNet, Paddle, TensorFlow
    python tools/setup_venv.py torch   # .venv-torch: PyTorch alone, NumPy 2

uv, from the PATH or brought by pip, installs what the lock files name, hashes checked;
here stands only what it cannot do. Runs on any Python, if only to refuse it: hence the
standard library alone and no new syntax.
"""

import ast
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
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Name: the folder, the lock file, what must import, a process each: the first import
# compiles, which takes longer than all the rest of the set-up but the downloads.
BOOK = "torch, jupyter_book, nbval"
FULL = (BOOK, "mxnet, paddle", "tensorflow")
SETUPS = {
    "full": (".venv", "requirements.lock", FULL),
    "torch": (".venv-torch", "requirements-torch.lock", (BOOK,)),
}

# What MXNet and Paddle expect from the system, and the wheel that also has it.
BORROWED = {
    "libgomp.so.1": "torch/lib/libgomp.so.1",
    "libquadmath.so.0": "paddle/libs/libquadmath.so.0",
}

# What pip was told about mirrors and the network, in uv's words.
PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}


class SetupError(Exception):
    """The set-up cannot go on; the message says why and what to do."""


def invalid(setup, version, system, machine):
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


def made_of(root, lock, version):
    """Say where an environment stands with which Python, and hash what it holds."""
    digest = hashlib.sha256()
    for name in (lock, "pyproject.toml"):
        digest.update((root / name).read_bytes())
    return f"{root} {version}\n{digest.hexdigest()}"


def ask_pip():
    """List the settings in pip's files; nothing where this Python has no pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    return subprocess.run(command, capture_output=True, text=True).stdout


def pip_settings(listed, environ):
    """Read `pip config list` and the variables PIP_*, which come before the files."""
    found = {}
    for line in sorted(listed.splitlines()):  # global.* before install.*
        scope, _, setting = line.partition(".")
        key, _, value = setting.partition("=")
        if scope in ("global", "install"):
            found[key.replace("_", "-")] = ast.literal_eval(value)
    for name, value in environ.items():
        if name.startswith("PIP_"):
            found[name[4:].lower().replace("_", "-")] = value
    return found


def uv_environment(settings, environ):
    """Hand on to uv what pip was told, where uv itself was told nothing."""
    env = dict(environ)
    for key, variable in PIP_TO_UV.items():
        if settings.get(key):
            words = settings[key].split()
            env.setdefault(variable, ("," if key == "find-links" else " ").join(words))
    if settings.get("extra-index-url"):
        # As pip: the best version of all indexes, not the first index that has any.
        env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return env


def split_lock(text):
    """Part a lock file into torch with its CUDA libraries, and all the rest."""
    pins = re.split(r"\n(?=[\w#])", text.strip())
    of_torch = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
    torch = [pin for pin in pins if of_torch.match(pin)]
    rest = [pin for pin in pins if pin not in torch and not pin.startswith("#")]
    return torch, rest


def advice(said):
    """Turn the failures people really meet into what to type next."""
    missing = re.search(r"(lib\S+\.so\S*): cannot open shared object", said)
    if missing:
        return f"Install the package of your system that holds {missing.group(1)}."
    if "ensurepip" in said:
        version = "{}.{}".format(*sys.version_info)
        return f"Install uv; or on Debian, sudo apt-get install python{version}-venv"
    if "No space left" in said:
        return "The disk is full."
    if re.search(r"Hash mismatch|DO NOT MATCH", said):
        return "A file is not the one that the lock names: a mirror gave another one."
    if re.search(r"name resolution|[Cc]onnect|[Tt]imed out|Timeout|dns error", said):
        return "The network did not answer; the next run goes on from here."
    return ""


class Installer:
    """Runs commands one by one; all that they say goes to a log."""

    def __init__(self, log, env):
        self.log, self.env = log, env

    def run(self, what, *command):
        """Run a command, show its large downloads, return what it said."""
        print(f"  {what}", flush=True)
        said = ["$ " + " ".join(map(str, command))]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(
            list(map(str, command)), cwd=str(ROOT), env=self.env, encoding="utf-8",
            errors="replace", **pipe,
        ) as process:  # fmt: skip
            try:
                for line in process.stdout:
                    said.append("    " + line.rstrip())
                    if re.match(r"Downloading .*(\d{3}(\.\d)?M|G)iB", line):
                        print(said[-1], flush=True)
            except BaseException:
                process.terminate()  # Ctrl-C: leave no installer running behind us
                raise
            finally:
                with self.log.open("a", encoding="utf-8") as log:
                    log.write("\n".join(said) + "\n\n")
        if process.returncode:
            tail = [f"This step failed: {what}", *said[-15:], f"    in {self.log}"]
            raise SetupError("\n".join([*tail, advice("\n".join(said))]).rstrip())
        return "\n".join(said)


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
            code = f"__import__('ctypes').CDLL({name!r})"
            if path.exists() and not runs(python, code):
                load = f"os.path.exists({str(path)!r}) and ctypes.CDLL({str(path)!r})"
                pth.write_text(f"import ctypes, os; {load}\n")


def make_environment(installer, venv, python, lock):
    """Make an empty environment, with uv in it unless the machine has one."""
    shutil.rmtree(str(venv), ignore_errors=True)
    # Asked from inside an environment, the Python that it was made with.
    base = getattr(sys, "_base_executable", sys.executable)
    uv = shutil.which("uv")
    if uv:
        installer.run("virtual environment", uv, "venv", "--python", base, venv)
        return
    installer.run("virtual environment", base, "-m", "venv", venv)
    _, rest = split_lock((ROOT / lock).read_text(encoding="utf-8"))
    pin = installer.log.with_suffix(".txt")
    pin.write_text("".join(p + "\n" for p in rest if p.startswith("uv==")))
    pip = (python, "-m", "pip", "install", "--no-deps", "--require-hashes")
    installer.run("uv", *pip, "--disable-pip-version-check", "-r", pin)


def install(installer, uv, lock, torch_index):
    """Install what the lock names; torch from elsewhere if the settings have another.

    A build with a local version, such as 2.13.0+cpu, or one from an index that the user
    named for it, is not in the lock: it alone is not checked.
    """
    torch, rest = split_lock((ROOT / lock).read_text(encoding="utf-8"))
    (pin,) = re.findall(r"^torch==\S+", "\n".join(torch), re.M)
    ask = [*uv, "--reinstall-package", "torch", pin]
    if torch_index:
        ask += ["--index", torch_index]
    told = installer.run("which build of torch?", *ask, "--dry-run", "--no-deps")
    version = re.search(r"[+~] torch==(\S+)", told).group(1)
    other = bool(torch_index) or "+" in version
    pins = installer.log.with_suffix(".txt")
    pins.write_text("\n".join(rest if other else torch + rest) + "\n")
    what = "all but torch" if other else "all packages"
    installer.run(what, *uv, "--no-deps", "--require-hashes", "-r", pins)
    if other:
        installer.run(f"torch {version}, as your settings say", *ask)


def build(name, torch_index):
    """Bring an environment up to date; raises SetupError."""
    folder, lock, imports = SETUPS[name]
    venv, version = ROOT / folder, tuple(sys.version_info[:2])
    stamp, wanted = venv / ".made-from", made_of(ROOT, lock, version)
    made_from = stamp.read_text() if stamp.exists() else ""
    if made_from == wanted:
        return
    reason = invalid(name, version, platform.system(), platform.machine())
    if reason:
        raise SetupError(reason)

    since = time.time()
    log = ROOT / "_build" / f"setup-{name}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("")
    print(f"Setting up {folder}; what uv says goes to {log.relative_to(ROOT)}.")
    env = uv_environment(pip_settings(ask_pip(), os.environ), os.environ)
    installer = Installer(log, env)
    bin = venv / ("Scripts" if platform.system() == "Windows" else "bin")
    python = bin / ("python.exe" if platform.system() == "Windows" else "python")
    # The paths of a moved environment are wrong, and half an environment is none.
    whole = made_from.split("\n")[0] == wanted.split("\n")[0] and runs(python, "")
    if stamp.exists():
        stamp.unlink()  # from here on it counts as half
    if not whole:
        make_environment(installer, venv, python, lock)
    uv = shutil.which("uv") or shutil.which("uv", path=str(bin))
    uv = [uv, "pip", "install", "--python", python]
    install(installer, uv, lock, torch_index)
    editable = ("--no-deps", "--no-build-isolation", "-e", ".")
    installer.run("d2lmulti itself, as a link: edits take effect", *uv, *editable)
    borrow_libraries(python, venv)

    def check(names):
        installer.run(f"does it import? {names}", python, "-c", f"import {names}")

    with ThreadPoolExecutor() as at_once:
        list(at_once.map(check, imports))
    stamp.write_text(wanted)
    print(f"{folder} is ready after {time.time() - since:.0f} s.", flush=True)


def main():
    """Set up what the command line names; exit 1 with a plain sentence if it fails."""
    if len(sys.argv) != 2 or sys.argv[1] not in SETUPS:
        sys.exit(__doc__)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop uv with us
    try:
        build(sys.argv[1], os.environ.get("TORCH_INDEX", ""))
    except SetupError as error:
        sys.exit(f"\n{error}")
    except KeyboardInterrupt:
        sys.exit("\nStopped; the next run begins again, with what was downloaded.")


if __name__ == "__main__":
    main()
