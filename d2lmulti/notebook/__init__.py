"""What a chapter needs from Jupyter: `%load_ext d2lmulti.notebook`.

It adds three cell magics. `%%tab torch` (or mxnet, paddle) runs the cell when
`D2LMULTI_BACKEND` names that framework; `%%needs tensorflow` (or horovod) runs it where
that module is installed, and elsewhere says how to; `%%gpu 2` runs it where the
framework finds two GPUs. Figures are sharp PNG in one style. The page builder, the
tests of the chapters and the script that executes them ask here too, so all agree.
Chapter: setup.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from d2lmulti.backends import get_backend
from d2lmulti.errors import InvalidInput

TABS = {"torch": "PyTorch", "mxnet": "MXNet", "paddle": "Paddle"}
"""The key and the label of each framework tab, in the order of the page."""

BESIDE = {
    "tensorflow": "pip install 'tensorflow-cpu==2.17.1'",
    "horovod": "make horovod, which compiles it with g++",
}
"""What a cell may need besides its framework, and how to install it."""

WITHOUT = "without-framework"
"""The tag of a first code cell whose page asks for no framework, so it runs once."""

_NEEDS_LINE = re.compile(r"\A\s*%%needs\b[ \t]*([^\n]*)(?:\n|\Z)")
_GPU_LINE = re.compile(r"\A\s*%%gpu\b[ \t]*([^\n]*)(?:\n|\Z)")
_TAB_LINE = re.compile(r"\A\s*%%tab\b[ \t]*([^\n]*)(?:\n|\Z)")

_STYLE = {
    "figure.figsize": (6.4, 3.6),
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    # The colours of plot.py without its yellow, which is too pale for a line on white.
    "axes.prop_cycle": (
        "cycler('color', ['#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9',"
        " '#D55E00', '#000000'])"
    ),
}


def tab_of(source: str, tags: Iterable[str] = ()) -> str | None:
    """Return the tab key of a code cell, or None for a cell common to all backends.

    A tab cell begins with the line `%%tab KEY`; the cell tag `tab-KEY` says the same to
    the page and to the tests, but not to Jupyter. The key is returned as written, so
    it may be one that `TABS` does not know.
    """
    match = _TAB_LINE.match(source)
    if match:
        return match.group(1).strip()
    for tag in tags:
        if tag.startswith("tab-"):
            return tag[len("tab-") :]
    return None


def without_tab_line(source: str) -> str:
    """Return the source of a cell without its line `%%tab KEY`, if it has one."""
    return _TAB_LINE.sub("", source)


def current_tab() -> str:
    """Return the tab that runs: `D2LMULTI_BACKEND`, or `torch` when it is not set.

    Raises InvalidInput when the variable names no framework of `TABS`.
    """
    value = os.environ.get("D2LMULTI_BACKEND") or "torch"
    key = {"pytorch": "torch"}.get(value.lower(), value.lower())
    if key not in TABS:
        raise InvalidInput(
            f"D2LMULTI_BACKEND is {value!r}, but a chapter runs with "
            f"{', '.join(TABS)}; set it to one of these and restart the kernel"
        )
    return key


def module_needed(source: str) -> str | None:
    """Return the module of a cell that begins with `%%needs MODULE`, as written.

    Before it, only the line of a tab may stand.
    """
    match = _NEEDS_LINE.match(without_tab_line(source))
    return match.group(1).strip() if match else None


def is_installed(module: str) -> bool:
    """Tell whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # something without a spec stands in its place
        return False


def gpus_needed(source: str) -> int:
    """Return N for a cell that begins with `%%gpu N`, which needs N real GPUs; else 0.

    Before it, only the line of a tab may stand.
    """
    match = _GPU_LINE.match(without_tab_line(source))
    return int(match.group(1)) if match and match.group(1).strip().isdecimal() else 0


def kernel_environment(backend: str, repository: str) -> dict[str, str]:
    """Return the environment in which a chapter's kernel runs under one backend.

    `repository` comes first on the path, so that the checkout is what is tested.
    """
    # ipykernel would not capture the output of child processes under pytest, and a
    # chosen matplotlib backend would keep figures out of the notebook.
    dropped = ("PYTEST_CURRENT_TEST", "MPLBACKEND")
    env = {k: v for k, v in os.environ.items() if k not in dropped}
    path = [repository, *filter(None, [env.get("PYTHONPATH")])]
    return env | {
        "D2LMULTI_BACKEND": backend,
        "D2LMULTI_QUIET": "1",  # no progress bars: they write to stderr
        "PYTHONPATH": os.pathsep.join(path),
    }


def count_gpus(backend: str, repository: str) -> int:
    """Count the GPUs that a framework can use, asked in a process of its own.

    Raises CalledProcessError when the framework cannot be imported.
    """
    code = "import sys, d2lmulti as d; print(d.get_backend(sys.argv[1]).gpu_count())"
    done = subprocess.run(
        [sys.executable, "-c", code, backend],
        env=kernel_environment(backend, repository),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])


def _select_tab(lines: list[str]) -> list[str]:
    """Turn a tab cell into an ordinary cell, or into an empty one.

    The cell is rewritten before IPython reads it, not run by a magic, so that its
    traceback, its last value, its names and its figures are those of any other cell.
    """
    source = "".join(lines)
    key = tab_of(source)
    if key not in TABS:
        return lines  # not a tab, or a wrong key: the magic below says so
    if key != current_tab():
        return ["# skipped: not the framework that D2LMULTI_BACKEND chooses\n"]
    body = without_tab_line(source)
    if body.startswith("%%"):
        return body.splitlines(keepends=True)  # another magic must come first
    # A comment in place of the magic keeps line numbers as the reader sees them.
    return [f"# tab {key}\n", *body.splitlines(keepends=True)]


def _select_installed(lines: list[str]) -> list[str]:
    """Turn a cell that needs a module into an ordinary one, or into one sentence."""
    source = "".join(lines)
    module = module_needed(source)
    if module not in BESIDE:
        return lines  # the magic below says so
    if not is_installed(module):
        return [f"print({missing(module)!r})\n"]
    rest = _NEEDS_LINE.sub("", source)
    return [f"# needs {module}\n", *rest.splitlines(keepends=True)]


def _select_gpus(lines: list[str]) -> list[str]:
    """Turn a cell that needs GPUs into an ordinary one, or into one sentence."""
    source = "".join(lines)
    needed = gpus_needed(source)
    if not needed:
        return lines  # the magic below says so
    if (found := _gpus_here(current_tab())) < needed:
        return [f"print({too_few(needed, current_tab(), found)!r})\n"]
    rest = _GPU_LINE.sub("", source)
    return [f"# needs {needed} GPUs\n", *rest.splitlines(keepends=True)]


@functools.cache
def _gpus_here(backend: str) -> int:
    """Count the GPUs that a framework sees: the same ones as long as it lives."""
    return get_backend(backend).gpu_count()


def too_few(needed: int, backend: str, found: int) -> str:
    """Say that a cell is skipped because the machine has too few GPUs."""
    return (
        f"skipped: this cell needs {needed} GPU{'s' * (needed > 1)}, and {backend} "
        f"finds {found} here"
    )


def missing(module: str) -> str:
    """Say that a cell is skipped because a module is missing, and what to do."""
    return (
        f"skipped: this cell needs {module}, which is not installed here; on Python "
        f"3.11 for Linux x86-64: {BESIDE[module]}"
    )


_EXPECTED = {
    "tab": f"one of {', '.join(TABS)} after %%tab, on the first line of the cell",
    "needs": f"one of {', '.join(BESIDE)} after %%needs",
    "gpu": "a number of GPUs after %%gpu, as in: %%gpu 2",
}


def _refuse(magic: str) -> Callable[[str, str], None]:
    """Make the magic that is left when the lines above did not know what to do."""

    def refuse(line: str, cell: str = "") -> None:
        raise InvalidInput(f"expected {_EXPECTED[magic]}, got {line.strip()!r}")

    return refuse


_SELECT = (_select_tab, _select_installed, _select_gpus)


def _set_figure_style(shell: Any) -> None:
    """Draw figures as PNG at twice the screen resolution, in one quiet style."""
    # Needed by chapters with figures only; `import d2lmulti` must not pay for it.
    import matplotlib  # noqa: TID251 (its settings; pictures are drawn in plot.py)
    from matplotlib_inline.config import InlineBackend

    inline = InlineBackend.instance(parent=shell)
    # Without the version of matplotlib inside, an unchanged figure stays the same file.
    inline.print_figure_kwargs = {
        "bbox_inches": "tight",
        "metadata": {"Software": None},
    }
    inline.figure_formats = {"retina"}
    matplotlib.rcParams.update(_STYLE)


def load_ipython_extension(shell: Any) -> None:
    """Make the three magics and the figure style part of this IPython shell."""
    current_tab()  # a wrong choice should fail in the first cell
    transforms: list[Callable[[list[str]], list[str]]] = (
        shell.input_transformers_cleanup
    )
    for select in _SELECT:
        if select not in transforms:
            names = [getattr(f, "__name__", "") for f in transforms]
            # IPython's own step for %%magics is called cell_magic; come before it.
            at = names.index("cell_magic") if "cell_magic" in names else len(names)
            transforms.insert(at, select)
    for name in _EXPECTED:
        shell.register_magic_function(_refuse(name), "cell", name)
    # TensorFlow reports the processor's features on stderr; 2: only errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _set_figure_style(shell)
    # Paddle warns about a missing compiler cache with a path of the machine.
    warnings.filterwarnings("ignore", message="No ccache found")
    os.environ.setdefault("PYTHONWARNINGS", "ignore:No ccache found")  # in its workers


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics out of this shell again."""
    for select in _SELECT:
        if select in shell.input_transformers_cleanup:
            shell.input_transformers_cleanup.remove(select)
    for name in _EXPECTED:
        shell.magics_manager.magics["cell"].pop(name, None)
