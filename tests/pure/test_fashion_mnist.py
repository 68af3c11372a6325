"""Fashion-MNIST: the files in the data folder, and those that are downloaded."""

from __future__ import annotations

import hashlib
import io
import logging
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest
from pure.idx_files import TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, write_set

from d2lmulti.data import fashion_mnist
from d2lmulti.data.datasets import load
from d2lmulti.errors import DataCorrupt, DataUnavailable

MINI = Path(__file__).parents[3] / "shared" / "data" / "fashion-mnist-mini"


@pytest.fixture
def published(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A web server with the files, whose checksums count as the published ones."""
    source = write_set(tmp_path / "published")
    sums = {
        name: hashlib.sha256((source / name).read_bytes()).hexdigest()
        for name in fashion_mnist.SHA256
    }

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep the requests out of the tests' output."""

    handler = partial(Quiet, directory=str(source))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        monkeypatch.setattr(fashion_mnist, "SHA256", sums)
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


def test_a_real_sample_of_fashion_mnist_loads(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MINI.is_dir()  # kept beside the repository, where there is one
    sample = MINI if real else write_set(data_folder, 75, 15)
    monkeypatch.setenv("D2LMULTI_DATA", str(sample))
    data = load("fashion_mnist")
    assert (len(data.train_X), len(data.test_X)) == ((750, 150) if real else (75, 15))
    assert set(data.train_y) == set(data.test_y) == set(range(10))
    assert data.train_X.min() == 0 and 0 < data.train_X.max() <= 1


@pytest.mark.parametrize("inner", ["", "fashion_mnist"])
def test_own_files_are_used_as_they_are(inner: str, data_folder: Path) -> None:
    # No network is there, and the checksums are not the published ones.
    folder = write_set(data_folder / inner, 20, 10)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(load("fashion_mnist").train_X) == 20
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_the_folder_of_the_data_set_wins_over_the_folder_above(
    data_folder: Path,
) -> None:
    write_set(data_folder, 20)
    write_set(data_folder / "fashion_mnist", 30)
    assert len(load("fashion_mnist").train_X) == 30


@pytest.mark.parametrize("value", [None, ""])
def test_without_d2lmulti_data_the_users_cache_is_used(
    value: str | None,
    data_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    if value is None:
        monkeypatch.delenv("D2LMULTI_DATA")
    else:
        monkeypatch.setenv("D2LMULTI_DATA", value)
    write_set(tmp_path / "cache" / "d2lmulti" / "fashion_mnist", 40)
    assert len(load("fashion_mnist").train_X) == 40


# -- the download ----------------------------------------------------------------------


def test_missing_files_are_downloaded_once(
    published: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load("fashion_mnist")
    home = data_folder / "fashion_mnist"
    assert sorted(path.name for path in home.iterdir()) == sorted(fashion_mnist.SHA256)
    monkeypatch.setattr(fashion_mnist, "URL", "http://127.0.0.1:9/")
    again = load("fashion_mnist")
    assert np.array_equal(first.train_X, again.train_X)


def test_a_download_that_was_interrupted_goes_on(
    published: Path, data_folder: Path
) -> None:
    home = data_folder / "fashion_mnist"
    home.mkdir(parents=True)
    (home / TRAIN_IMAGES).write_bytes((published / TRAIN_IMAGES).read_bytes())
    (published / TRAIN_IMAGES).unlink()  # so a second download of it would fail
    assert len(load("fashion_mnist").train_X) == 30


def test_a_set_of_ones_own_is_not_completed_by_a_download(
    published: Path, data_folder: Path
) -> None:
    folder = write_set(data_folder, 20)
    (folder / TEST_LABELS).unlink()
    with pytest.raises(
        DataUnavailable, match=f"{TEST_LABELS} is missing .*add what is missing, or"
    ):
        load("fashion_mnist")
    assert len(list(folder.iterdir())) == 3


def test_a_download_with_another_checksum_is_refused_and_not_kept(
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
    assert "by hand, or set D2LMULTI_DATA" in message


def test_a_page_that_is_gone_is_an_error_too(published: Path) -> None:
    (published / TRAIN_IMAGES).unlink()
    with pytest.raises(DataUnavailable, match="got HTTPError: 404 .*by hand") as caught:
        load("fashion_mnist")
    caught.value.__cause__.response.close()  # pooch leaves its socket open


def test_d2lmulti_data_must_be_a_folder(
    data_folder: Path,
) -> None:
    data_folder.touch()
    with pytest.raises(DataUnavailable, match="expected a folder in D2LMULTI_DATA"):
        load("fashion_mnist")


@pytest.mark.parametrize("quiet", [True, False])
def test_the_progress_bar_is_off_when_asked(
    quiet: bool,
    published: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("D2LMULTI_QUIET", "1" if quiet else "0")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    load("fashion_mnist")
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "" if quiet else TRAIN_IMAGES in err and "100%" in err


def test_pooch_does_not_report_beside_the_bar_but_later_again(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, said = pooch.get_logger(), io.StringIO()
    monkeypatch.setattr(log, "handlers", [logging.StreamHandler(said)])
    log.info("before")
    load("fashion_mnist")
    assert said.getvalue() == "before\n"
    log.info("after")
    assert said.getvalue() == "before\nafter\n"
