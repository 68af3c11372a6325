"""Make the virtual environment that every make target runs in.

    python tools/setup_venv.py full    # .venv: PyTorch, MXNet, Paddle, TensorFlow
    python tools/setup_venv.py torch   # .venv-torch: PyTorch alone, NumPy 2

uv, from the PATH or brought by pip, installs what the lock file names, hashes checked.
Runs on any Python, if only to refuse it: hence the standard library alone.
"""

import ast
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
from subprocess import DEVNULL, PIPE, STDOUT

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Name: the folder, the lock file, and what is imported once, a process each. The first
# import compiles, and tests have a time limit.
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


def unfit(setup, version):
    """Say in one sentence why this Python cannot hold the set-up, or return None."""
    here = f"this is Python {version[0]}.{version[1]} on {platform.system()}"
    linux = sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
    if setup == "full" and not (version == (3, 11) and linux):
        return (
            "The three frameworks together need Python 3.11 on Linux x86-64, and "
            f"{here}; name one with PYTHON=/path/to/python3.11, or take PyTorch alone: "
            "make book SETUP=torch, make test SETUP=torch."
        )
    if not (3, 11) <= version <= (3, 14):
        return (
            f"PyTorch alone needs Python 3.11 to 3.14, and {here}; name one with "
            "PYTHON=/path/to/python3."
        )
    return None


def uv_environment(listed, environ):
    """Hand on to uv what `pip config list` and PIP_* say, where uv was told nothing."""
    settings = {}
    for line in sorted(listed.splitlines()):  # global.* before install.*
        scope, _, setting = line.partition(".")
        key, _, value = setting.partition("=")
        if scope in ("global", "install"):
            settings[key.replace("_", "-")] = ast.literal_eval(value)
    for name, value in environ.items():
        if name.startswith("PIP_"):
            settings[name[4:].lower().replace("_", "-")] = value
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
    """Split a lock file into torch with its CUDA libraries, and all the rest."""
    pins = re.split(r"\n(?=[\w#])", text.strip())
    of_torch = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
    torch = [pin for pin in pins if of_torch.match(pin)]
    rest = [pin for pin in pins if pin not in torch and not pin.startswith("#")]
    return torch, rest


def run(env, *command):
    """Run a command and return what it wrote to stdout and stderr; stop if it fails."""
    command = [str(word) for word in command]
    done = subprocess.run(
        command, cwd=str(ROOT), env=env, stdout=PIPE, stderr=STDOUT, encoding="utf-8"
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nThis failed: {' '.join(command)}")
    return done.stdout


def install_packages(env, uv, lock, pins):
    """Install what the lock names; torch from elsewhere if the settings have another.

    A build with a local version, such as 2.13.0+cpu, or one from TORCH_INDEX, is not in
    the lock, so its hash alone is not checked.
    """
    torch, rest = split_lock((ROOT / lock).read_text(encoding="utf-8"))
    (pin,) = re.findall(r"^torch==\S+", "\n".join(torch), re.M)
    index = os.environ.get("TORCH_INDEX", "")
    torch_only = [*uv, "--no-deps", pin, *(["--index", index] if index else [])]
    version = re.search(r"\+ torch==(\S+)", run(env, *torch_only, "--dry-run"))[1]
    from_lock = not index and "+" not in version
    pins.write_text("\n".join(rest + torch if from_lock else rest) + "\n")
    print(f"  torch {version} and all other packages", flush=True)
    run(env, *uv, "--no-deps", "--require-hashes", "-r", pins)
    if not from_lock:
        run(env, *torch_only)


def borrow_libraries(venv, python):
    """Where the system lacks a library, load it from a wheel whenever Python starts."""
    for packages in venv.glob("lib/python*/site-packages"):
        for name, lender in BORROWED.items():
            path = packages / lender
            code = f"__import__('ctypes').CDLL({name!r})"
            missing = subprocess.call([str(python), "-c", code], stderr=DEVNULL)
            if path.exists() and missing:
                load = f"os.path.exists({str(path)!r}) and ctypes.CDLL({str(path)!r})"
                pth = packages / f"borrowed-{name}.pth"
                pth.write_text(f"import ctypes, os; {load}\n")


def build(setup):
    """Make the environment again unless it was made from this lock by this Python."""
    folder, lock, imports = SETUPS[setup]
    venv, version = ROOT / folder, tuple(sys.version_info[:2])
    bin = venv / ("Scripts" if sys.platform == "win32" else "bin")
    python = bin / ("python.exe" if sys.platform == "win32" else "python")
    sources = (ROOT / lock).read_bytes() + pathlib.Path(__file__).read_bytes()
    made_from = f"{ROOT} {version} {hashlib.sha256(sources).hexdigest()}"
    stamp = venv / ".made-from"
    if stamp.exists() and stamp.read_text() == made_from:
        return
    reason = unfit(setup, version)
    if reason:
        sys.exit(reason)

    print(f"Setting up {folder}: a minute on a good line, and 4 GB.", flush=True)
    # Asked from inside an environment, the Python that it was made with.
    base = getattr(sys, "_base_executable", sys.executable)
    config = [base, "-m", "pip", "config", "list"]
    listed = subprocess.run(config, stdout=PIPE, stderr=DEVNULL, encoding="utf-8")
    env = uv_environment(listed.stdout, os.environ)
    pins = ROOT / "_build" / f"pins-{setup}.txt"
    pins.parent.mkdir(exist_ok=True)
    shutil.rmtree(str(venv), ignore_errors=True)
    uv = shutil.which("uv")
    if uv:
        run(env, uv, "venv", "--python", base, venv)
    else:  # on Debian: apt-get install python3.11-venv
        run(env, base, "-m", "venv", venv)
        _, rest = split_lock((ROOT / lock).read_text(encoding="utf-8"))
        pins.write_text("".join(pin + "\n" for pin in rest if pin.startswith("uv==")))
        run(None, python, "-m", "pip", "install", "--require-hashes", "-r", pins)
        uv = shutil.which("uv", path=str(bin))
    uv = [uv, "pip", "install", "--python", python]
    install_packages(env, uv, lock, pins)
    run(env, *uv, "--no-deps", "--no-build-isolation", "-e", ".")
    borrow_libraries(venv, python)
    print("  first imports", flush=True)
    commands = [[str(python), "-c", "import " + names] for names in imports]
    started = [subprocess.Popen(command, stderr=PIPE) for command in commands]
    for process in started:
        _, errors = process.communicate()
        if process.returncode:
            sys.exit(errors.decode())
    stamp.write_text(made_from)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SETUPS:
        sys.exit(__doc__)
    build(sys.argv[1])
