"""Fashion-MNIST: the files in the data folder, and those that are downloaded."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from pure.idx_files import TRAIN_LABELS, publish, write_set

from d2lmulti import data as fashion_mnist
from d2lmulti.data import load
from d2lmulti.errors import DataCorrupt, DataUnavailable

MINI = Path(__file__).parents[3] / "shared" / "data" / "fashion-mnist-mini"


@pytest.fixture
def published(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A web server with the files, whose checksums count as the published ones."""
    source = write_set(tmp_path / "published", monkeypatch)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep the requests out of the tests' output."""

    handler = partial(Quiet, directory=str(source))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setattr(fashion_mnist, "URL", url)
        yield source
        server.shutdown()


def test_fashion_mnist_is_read_pixel_by_pixel(own_set: Path) -> None:
    data = load("fashion_mnist", "float64")
    assert (len(data.train_X), len(data.test_X)) == (30, 10)
    assert data.train_y.tolist() == [*range(10)] * 3
    for i, image in enumerate(data.train_X):
        assert np.array_equal(image, np.full((1, 28, 28), i / 255))
    assert data.classes[9] == "ankle boot"


@pytest.mark.skipif(not MINI.is_dir(), reason="needs a sample of the real files")
def test_a_real_sample_of_fashion_mnist_loads(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(MINI, data_folder / "fashion_mnist")
    publish(MINI, monkeypatch)
    data = load("fashion_mnist")
    assert (len(data.train_X), len(data.test_X)) == (750, 150)
    assert set(data.train_y) == set(data.test_y) == set(range(10))
    assert data.train_X.min() == 0 and 0 < data.train_X.max() <= 1


# -- the download ----------------------------------------------------------------------


def test_missing_files_are_downloaded_once(published: Path, data_folder: Path) -> None:
    first = load("fashion_mnist")
    home = data_folder / "fashion_mnist"
    assert sorted(path.name for path in home.iterdir()) == sorted(fashion_mnist.SHA256)
    for path in published.iterdir():  # so a second download would fail
        path.unlink()
    again = load("fashion_mnist")
    assert np.array_equal(first.train_X, again.train_X)


def test_a_download_with_another_checksum_is_not_kept(
    published: Path, data_folder: Path
) -> None:
    (published / TRAIN_LABELS).write_bytes(b"an error page of some proxy")
    with pytest.raises(DataCorrupt, match=f"{TRAIN_LABELS} is not the published file"):
        load("fashion_mnist")
    assert not (data_folder / "fashion_mnist" / TRAIN_LABELS).exists()


def test_without_a_network_it_says_where_to_put_the_files(data_folder: Path) -> None:
    with pytest.raises(DataUnavailable) as caught:
        load("fashion_mnist")
    message = str(caught.value)
    assert str(data_folder / "fashion_mnist") in message
    assert all(name in message for name in (fashion_mnist.URL, *fashion_mnist.SHA256))
