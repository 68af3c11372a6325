"""What a chapter needs from Jupyter: `%load_ext d2lmulti_book.notebook`.

It adds three cell magics. `%%tab torch` (or mxnet, paddle) runs the cell when
`D2LMULTI_BACKEND` names that framework; `%%needs tensorflow` (or horovod) runs it where
that module is installed, and elsewhere says how to; `%%gpu 2` runs it where the
framework finds two GPUs. Figures are sharp PNG in one style. The page builder, the
tests of the chapters and the script that executes them ask here too, so all agree.
Chapter: setup.
"""

from __future__ import annotations

import ast
import functools
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
"""What a cell may need besides its framework, and how to install it."""

WITHOUT = "without-framework"
"""The tag of a first code cell whose page asks for no framework, so it runs once."""

ON_GPUS = {
    # Multiply float32 numbers as such. TF32, a default on GPUs, rounds them to 10 bits.
    "NVIDIA_TF32_OVERRIDE": "0",
    # Take kernels that add in the same order in every run.
    "D2LMULTI_DETERMINISTIC": "1",  # read by our PyTorch backend
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "MXNET_ENFORCE_DETERMINISM": "1",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
    "FLAGS_cudnn_deterministic": "1",
    "FLAGS_embedding_deterministic": "1",
    # Let TensorFlow allocate what it needs instead of nearly all memory of all GPUs.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}
"""The environment in which chapters and tests run, set before a framework is imported.

It changes nothing on a CPU. On a GPU, it asks for results that repeat bit for bit, and
lets chapters that run at the same time share the memory.
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
    # The colors of style.py without its yellow, which is too pale for a line on white.
    "axes.prop_cycle": (
        "cycler('color', ['#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9',"
        " '#D55E00', '#000000'])"
    ),
}


class Asked(NamedTuple):
    """What the magics on top of a cell ask for, as written; None: not asked for."""

    tab: str | None = None
    needs: str | None = None
    gpu: str | None = None

    def wrong(self) -> str | None:
        """Say which of the three magics nobody can follow, or None."""
        if self.tab not in (None, *TABS):
            return f"expected one of {', '.join(TABS)} after %%tab, got {self.tab!r}"
        if self.needs not in (None, *BESIDE):
            names = ", ".join(BESIDE)
            return f"expected one of {names} after %%needs, got {self.needs!r}"
        if self.gpu is not None and not self.gpu.isdecimal():
            return f"expected a number of GPUs after %%gpu, got {self.gpu!r}"
        return None

    def skipped(self, backend: str, gpus: Callable[[], int]) -> str | None:
        """Say why a backend does not run the cell here, or None where it runs.

        `gpus` counts them, and is called only if the cell asks. Of a cell of another
        framework there is nothing to say: the answer is empty.
        """
        if self.tab not in (None, backend):
            return ""
        if self.needs and not is_installed(self.needs):
            return (
                f"skipped: this cell needs {self.needs}, which is not installed here; "
                f"on Python 3.11 for Linux x86-64: {BESIDE[self.needs]}"
            )
        if (needed := int(self.gpu or 0)) and (found := gpus()) < needed:
            return (
                f"skipped: this cell needs {needed} GPU{'s' * (needed > 1)}, and "
                f"{backend} finds {found} here"
            )
        return None


def split_cell(source: str) -> tuple[Asked, str]:
    """Return what the magics on top of a code cell ask for, and the code below them.

    The magics are in the order of `Asked`, each on its own line.
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
    """Tell whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # something without a spec stands in its place
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
        # A backward pass on a GPU may begin in a thread that used none before.
        "PYTHONWARNINGS": "ignore:Attempting to run cuBLAS:UserWarning",
        "PYTHONPATH": os.pathsep.join(path),
    }


def _run(shell: Any, source: str) -> Any:
    """Run a cell with magics on top, or say why not; return the value to display.

    An exception passes through once, and shows the lines that the reader sees.
    """
    asked, body = split_cell(source)
    if wrong := asked.wrong():
        raise InvalidInput(wrong)
    # A page that needs no framework must not ask for one.
    backend = current_tab() if asked.tab or asked.gpu else ""
    why = asked.skipped(backend, lambda: get_backend(backend).gpu_count())
    if why is not None:
        print(why, end="\n" if why else "")
        return None
    # A comment in place of each magic keeps the line numbers.
    magics = source.removesuffix(body).splitlines()
    code = "".join(f"# {line}\n" for line in magics) + shell.transform_cell(body)
    name = shell.compile.cache(code, shell.displayhook.prompt_count)
    names = (shell.user_global_ns, shell.user_ns)
    try:
        tree = shell.transform_ast(shell.compile.ast_parse(code, name))
        if not tree.body or not isinstance(tree.body[-1], ast.Expr):
            tree.body += ast.parse("None").body  # no value to display
        last = tree.body.pop()
        exec(shell.compile(tree, name, "exec"), *names)
        value = eval(shell.compile(ast.Expression(last.value), name, "eval"), *names)
    except BaseException as error:
        # IPython shows what this method returns: the traceback without our own frame
        # and those above it.
        frames = error.__traceback__ and error.__traceback__.tb_next
        error._render_traceback_ = functools.partial(  # type: ignore[attr-defined]
            shell.InteractiveTB.structured_traceback,
            type(error),
            error,
            frames,
            tb_offset=0,
        )
        raise
    behind = code.split("\n")[last.end_lineno - 1].encode()[last.end_col_offset :]
    return None if behind.lstrip().startswith(b";") else value


def _set_figure_style(shell: Any) -> None:
    """Draw figures as PNG at twice the screen resolution, in one quiet style."""
    # Needed by chapters with figures only; `import d2lmulti` must not pay for it.
    import matplotlib  # noqa: TID251 (its settings; pictures are drawn in figures)
    from matplotlib_inline.config import InlineBackend

    inline = InlineBackend.instance(parent=shell)
    # Without the version of matplotlib inside, an unchanged figure stays the same file.
    inline.print_figure_kwargs = {
        "bbox_inches": "tight",
        "metadata": {"Software": None},
    }
    inline.figure_formats = {"retina"}
    matplotlib.rcParams.update(_STYLE)


def prepare() -> None:
    """Set what the cells of a chapter expect from this kernel besides the magics."""
    from IPython import get_ipython

    # TensorFlow reports the processor's features on stderr; 2: only errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _set_figure_style(get_ipython())
    # Paddle warns about a missing compiler cache with a path of the machine.
    warnings.filterwarnings("ignore", message="No ccache found")
    os.environ.setdefault("PYTHONWARNINGS", "ignore:No ccache found")  # in its workers


def load_ipython_extension(shell: Any) -> None:
    """Make the three magics and the figure style part of this IPython shell."""
    current_tab()  # a wrong choice should fail in the first cell
    for name in Asked._fields:

        def magic(line: str, cell: str, name: str = name) -> Any:
            return _run(shell, f"%%{name} {line}\n{cell}")

        shell.register_magic_function(magic, "cell", name)
    prepare()


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics out of this shell again."""
    for name in Asked._fields:
        shell.magics_manager.magics["cell"].pop(name, None)
