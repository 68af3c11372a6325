"""The table of nonsense for the command line; see `bad_values.py`."""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "nothing": "",
    "a word": "nonsense",
    "nan": "nan",
    "inf": "inf",
    "-inf": "-inf",
    "-1": "-1",
    "0": "0",
    "1.5": "1.5",
    "1e400": "1e400",
    "10**25": str(10**25),
    "5,000 digits": "9" * 5000,
    "True": "True",
    "None": "None",
    "a list": "[1, 2]",
    "hexadecimal": "0x10",
    "two": "1 2",
}

RIGHT_TEXTS: dict[str, set[str]] = {
    "count": set(),
    "seed": {"0", "10**25"},
    "positive": {"1.5"},
    "rate": {"1.5", "10**25"},
    "below 1": {"0"},
    "stage of ZeRO": set(),
    "name": set(),
    # Names of files that may be written, though they are odd ones.
    "file": set(TEXTS) - {"nothing", "5,000 digits"},
}

OPTIONS: dict[str, str] = {
    "backend": "name",
    "devices": "count",
    "model": "name",
    "dataset": "name",
    "batch_size": "count",
    "lr": "rate",
    "optimizer": "name",
    "momentum": "below 1",
    "epochs": "count",
    "seed": "seed",
    "dtype": "name",
    "strategy": "name",
    "algorithm": "name",
    "bucket_mb": "positive",
    "schedule": "name",
    "micro_batches": "count",
    "stages": "count",
    "zero": "stage of ZeRO",
    "checkpoint": "file",
    "save_every": "count",
    "json": "file",
    "plot": "file",
    "timeline": "file",
    "what": "name",
    "repeats": "count",
    "threads": "count",
    "collective": "name",
    "ranks": "count",
    "bytes": "count",
    "cluster": "name",
    "gpus": "count",
    "batch": "count",
    "table": "name",  # of a file that must be there
}
# What an option needs beside it, so that its value is all that is wrong.
BESIDE: dict[str, str] = {
    "schedule": "--strategy model",
    "micro_batches": "--strategy model",
    "stages": "--strategy model",
    "zero": "--strategy sharded",
    "save_every": "--checkpoint new.npz",
}

# What the other commands need, so that one option is all that is wrong.
NEEDED: dict[str, dict[str, str]] = {
    "plan": {"model": "1B", "cluster": "dgx-h100", "gpus": "8"},
    "validate": {"table": "chapters/measured/gpipe_tables_2_3.csv"},
}

# Whole command lines, and a part of the sentence.
LINES: dict[str, str] = {
    "simulate --collective broadcast --algorithm tree": "with allreduce only",
    "simulate --collective alltoall --ranks 3 --bytes 100": "a multiple of 12 bytes",
    "simulate --bytes 5": "a multiple of 4 bytes",
    "simulate --ranks 65537": "from 1 to 65536",
    "simulate --json nowhere/x.json": "nowhere",
    "plan --model resnet-50 --cluster dgx-1 --gpus 8 --batch 9": "8 GPUs divide",
    "plan --model 1B --cluster dgx-1 --gpus 8 --json .": "ordinary file",
    "plan --cluster dgx-1 --gpus 8": "required: --model",
    "plan --model 1B --cluster dgx-1 --gpus 65537": "from 1 to 65536",
    "validate": "required: FILE.csv",
    "validate .": "a CSV file that can be read",
}

# Options that do not belong together, and a part of the sentence.
COMBINATIONS: dict[str, str] = {
    "--resume": "a checkpoint file",
    "--save-every 3": "a checkpoint file",
    "--save-every 3 --resume": "a checkpoint file",
    "--optimizer adam --momentum 0.9": "momentum with the optimizer sgd only",
    "--optimizer adam --momentum 2": "momentum with the optimizer sgd only",
    "--schedule gpipe": "options of the strategy data, got schedule",
    "--micro-batches 2": "options of the strategy data, got micro_batches",
    "--stages 2": "options of the strategy data, got stages",
    "--strategy layer --bucket-mb 1": "options of the strategy layer",
    "--strategy layer --schedule gpipe": "options of the strategy layer",
    "--strategy layer --stages 2": "options of the strategy layer",
    "--strategy model --bucket-mb 1": "options of the strategy model",
    "--strategy model --algorithm ring": "options of the strategy model",
    "--zero 2": "options of the strategy data, got zero",
    "--strategy sharded --zero 4": "from 1 to 3 as zero, got 4",
    "--strategy sharded --algorithm ring": "options of the strategy sharded",
    "--strategy sharded --bucket-mb 1": "options of the strategy sharded",
    "--strategy sharded --model lenet_bn": "layer by layer",
    "--strategy layer --devices 3": "3 does not divide",
    "--strategy layer --model lenet_bn": "to split by layers",
    "--strategy model --devices 3": "into 3 stages",
    "--strategy model --stages 3": "stages",
    "--strategy model --model lenet_bn": "into stages",
    "--strategy model --micro-batches 999": "fewer than 999 micro-batches",
    "--model transformer": "ids of characters",
    "--dataset text": "images",
    "--devices 999": "fewer than 999 devices",
    "--batch-size 3 --devices 8": "fewer than 8 devices",
    "--bucket-mb 1e-9": "bucket",
    "--lr 1e308": "finite loss",
    "--lr 1e30 --optimizer adam": "finite",
    "--checkpoint .": "ordinary file",
    "--json .": "ordinary file",
    "--plot ..": "ordinary file",
    "--timeline .": "ordinary file",
    "--json nowhere/x.json": "nowhere",
    "--checkpoint nowhere/x.npz": "nowhere",
    "--json a --timeline a": "a",
    "--nonsense": "unrecognized arguments",
    "--epochs": "expected one argument",
    "more words": "unrecognized arguments",
}
