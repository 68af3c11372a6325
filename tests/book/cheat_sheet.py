"""The cheat sheet as code: a row is carried out with the CPU in the GPUs' place."""

from __future__ import annotations

from typing import Any

# What the sheet writes for two GPUs, and what stands for it here.
ON_CPU = (
    ("mx.gpu(", "mx.cpu("),
    ('"cuda:1"', '"cpu"'),
    ('"cuda", ', '"cpu", '),
    ('"gpu:1"', '"cpu"'),
    ('"GPU:1"', '"CPU:1"'),
    ("MirroredStrategy()", 'MirroredStrategy(["CPU:0", "CPU:1"])'),
)


class Sheet:
    """The rows of one tool, and the names that their code sees and makes."""

    def __init__(self, rows: dict[str, list[str]], **names: Any) -> None:
        self.rows, self.names = dict(rows), names

    def __call__(self, step: str) -> None:
        """Carry out a row; a row can be carried out once."""
        for code in self.rows.pop(step):
            for real, stand_in in ON_CPU:
                code = code.replace(real, stand_in)
            exec(code, self.names)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.names[name] = value
