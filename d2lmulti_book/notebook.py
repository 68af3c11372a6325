"""Jupyter support for the chapters: `%load_ext d2lmulti_book.notebook`.

It adds three cell magics. `%%tab torch` (or mxnet, paddle) runs the cell when
`D2LMULTI_BACKEND` names that framework; `%%needs tensorflow` (or horovod) runs it where
that module is installed, and otherwise prints how to install it; `%%gpu 2` runs it
where the framework finds two GPUs. Figures are PNG in one style at twice the screen
resolution. The page builder, the tests of the chapters, and the script that executes
them use this module, too. Chapter: *setup*.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from d2lmulti.backends import get_backend
from d2lmulti.errors import InvalidInput

TABS = {"torch": "PyTorch", "mxnet": "MXNet", "paddle": "Paddle"}
"""The key and the label of each framework tab, in the order of the page."""

BESIDE = {
    "tensorflow": "pip install 'tensorflow-cpu==2.17.1'",
    "horovod": "make horovod, which compiles it with g++",
}
"""The modules that a cell may need besides its framework, and their installation."""

WITHOUT = "without-framework"
"""The tag of the first code cell of a page that needs no framework; it runs once."""

ON_GPUS = {
    # Multiply float32 numbers as such. TF32, a default on GPUs, rounds them to 10 bits.
    "NVIDIA_TF32_OVERRIDE": "0",
    # Use kernels that sum in the same order in every run.
    "D2LMULTI_DETERMINISTIC": "1",  # read by our PyTorch backend
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "MXNET_ENFORCE_DETERMINISM": "1",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
    "FLAGS_cudnn_deterministic": "1",
    "FLAGS_embedding_deterministic": "1",
    # Let TensorFlow allocate memory as needed instead of nearly all of all GPUs.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}
"""The environment in which chapters and tests run, set before a framework is imported.

It changes nothing on a CPU. On a GPU, it makes results reproducible bit for bit, and
lets concurrent chapters share the memory.
"""

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
    # The colors of figures/style.py without yellow, too pale for a line on white.
    "axes.prop_cycle": (
        "cycler('color', ['#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9',"
        " '#D55E00', '#000000'])"
    ),
}


class Asked(NamedTuple):
    """The arguments of the magics on top of a cell; None for an absent magic."""

    tab: str | None = None
    needs: str | None = None
    gpu: str | None = None

    def wrong(self) -> str | None:
        """Return the error of an invalid argument, or None."""
        if self.tab not in (None, *TABS):
            return f"expected one of {', '.join(TABS)} after %%tab, got {self.tab!r}"
        if self.needs not in (None, *BESIDE):
            names = ", ".join(BESIDE)
            return f"expected one of {names} after %%needs, got {self.needs!r}"
        if self.gpu is not None and not self.gpu.isdecimal():
            return f"expected a number of GPUs after %%gpu, got {self.gpu!r}"
        return None

    def skipped(self, backend: str, gpus: Callable[[], int]) -> str | None:
        """Return why a backend does not run the cell here, or None if it runs.

        `gpus` counts them, and is called only for a cell with %%gpu. For a cell of
        another framework the reason is empty.
        """
        if self.tab not in (None, backend):
            return ""
        if self.needs and not is_installed(self.needs):
            return (
                f"skipped: this cell needs {self.needs}, which is not installed here; "
                f"on Python 3.11 for Linux x86-64: {BESIDE[self.needs]}"
            )
        if (required := int(self.gpu or 0)) and (count := gpus()) < required:
            return (
                f"skipped: this cell needs {required} GPU{'s' * (required > 1)}, and "
                f"{backend} finds {count} here"
            )
        return None


def split_cell(source: str) -> tuple[Asked, str]:
    """Return the arguments of the magics on top of a code cell, and the code below.

    The magics are in the order of `Asked`, each on a line of its own.
    """
    asked = {}
    for name in Asked._fields:
        line = re.match(rf"\s*%%{name}\b[ \t]*(.*?)[ \t]*(?:\n|\Z)", source)
        if line:
            asked[name] = line[1]
            source = source[line.end() :]
    return Asked(**asked), source


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


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # sys.modules has an object without a spec
        return False


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
        **ON_GPUS,
        "D2LMULTI_BACKEND": backend,
        "D2LMULTI_QUIET": "1",  # no progress bars: they write to stderr
        "PYTHONPATH": os.pathsep.join(path),
    }


def _chosen(lines: list[str]) -> list[str]:
    """Return the lines of a cell that run here; a reason is printed if none does."""
    source = "".join(lines)
    asked, body = split_cell(source)
    if wrong := asked.wrong():
        raise InvalidInput(wrong)
    # A page that needs no framework must not import one.
    backend = current_tab() if asked.tab or asked.gpu else ""
    why = asked.skipped(backend, lambda: get_backend(backend).gpu_count())
    if why is not None:
        return [f"print({why!r})\n"] if why else []
    # A comment instead of each magic keeps the line numbers.
    magics = source.removesuffix(body).splitlines(keepends=True)
    return [f"# {line}" for line in magics] + body.splitlines(keepends=True)


def _set_figure_style(shell: Any) -> None:
    """Draw figures as PNG at twice the screen resolution, in one style."""
    # Imported here, because only chapters with figures need it.
    import matplotlib  # noqa: TID251 (its settings; figures/ draws)
    from matplotlib_inline.backend_inline import configure_inline_support
    from matplotlib_inline.config import InlineBackend

    inline = InlineBackend.instance(parent=shell)
    # Without the version of matplotlib inside, an unchanged figure stays the same file.
    inline.print_figure_kwargs = {
        "bbox_inches": "tight",
        "metadata": {"Software": None},
    }
    inline.figure_formats = {"retina"}
    if shell:  # otherwise, the first cell's figure would be shown after the second
        configure_inline_support(shell, "module://matplotlib_inline.backend_inline")
    matplotlib.rcParams.update(_STYLE)


def prepare() -> None:
    """Set the figure style and environment that chapters expect."""
    from IPython import get_ipython

    # TensorFlow reports the processor's features on stderr; 2: only errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _set_figure_style(get_ipython())
    # Paddle warns about a missing compiler cache with a path of the machine.
    warnings.filterwarnings("ignore", message="No ccache found")
    # A backward pass on a GPU may begin in a thread that used none before.
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
    os.environ.setdefault("PYTHONWARNINGS", "ignore:No ccache found")  # in its workers


def load_ipython_extension(shell: Any) -> None:
    """Obey the three magics in this IPython shell, and set the figure style."""
    current_tab()  # a wrong choice should fail in the first cell
    shell.input_transformers_cleanup.append(_chosen)
    prepare()


def unload_ipython_extension(shell: Any) -> None:
    """Obey the magics no longer."""
    shell.input_transformers_cleanup.remove(_chosen)
