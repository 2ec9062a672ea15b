"""Trains a small classifier to tell which photograph a crop comes from.

    python -X gil=0 examples/train_photos.py PHOTOS [--torch] [--workers N]

PHOTOS is a folder of pictures; each is a class. A few thousand crops of them are
written to disk as JPEG files, then read back, decoded, augmented, batched and learned.
The crops that measure the accuracy come from the right quarter of each photograph,
which training never sees. The run also tells how fast the loader is alone, what share
of a training step goes into waiting for it, and whether two runs with one seed see the
same batches.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import dataloader
from dataloader import DataLoader
from small_models import Floats, Model, NumpyModel, TorchModel

STORED = 96
"""Width and height in pixels of a crop on disk."""

TRAINED = 80
"""Width and height in pixels of what is cut from it as augmentation."""


@dataclass(frozen=True)
class Crop:
    """A file on disk and the number of the photograph that it was cut from."""

    path: Path
    label: int


class PhotoCrops:
    """A map-style dataset of crops; it needs no base class.

    A sample is a pair of an image, float32 of shape (80, 80, 3) with values in 0 to 1,
    and its label.
    """

    def __init__(self, crops: list[Crop], augmented: bool) -> None:
        self.crops = crops
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.crops)

    def __getitem__(self, index: int) -> tuple[Floats, int]:
        crop = self.crops[index]
        with Image.open(crop.path) as picture:
            pixels = np.asarray(picture, dtype=np.float32) / np.float32(255)
        view = augment(pixels) if self.augmented else central(pixels)
        return view, crop.label


def augment(pixels: Floats) -> Floats:
    """Cut at a random place, perhaps mirror, change the brightness.

    `dataloader.rng` makes the draws depend on the seed, the epoch and the sample's
    place in it, so they are the same for any number of workers.
    """
    rng = dataloader.rng()
    top, left = rng.integers(0, STORED - TRAINED, size=2, endpoint=True)
    view = pixels[top : top + TRAINED, left : left + TRAINED]
    if rng.random() < 0.5:
        view = view[:, ::-1]
    bright: Floats = np.clip(view * np.float32(rng.uniform(0.7, 1.3)), 0, 1)
    return bright


def central(pixels: Floats) -> Floats:
    """Cut out the middle."""
    edge = (STORED - TRAINED) // 2
    return pixels[edge : edge + TRAINED, edge : edge + TRAINED]


def cut_files(
    photos: list[Path], folder: Path, per_photo: int, seed: int
) -> tuple[list[Crop], list[Crop]]:
    """Write crops of each photograph to disk: for training, and held out."""
    rng = np.random.default_rng(seed)
    training: list[Crop] = []
    held_out: list[Crop] = []
    for label, photo in enumerate(photos):
        with Image.open(photo) as opened:
            picture = opened.convert("RGB")
        width, height = picture.size
        border = width - max(width // 4, STORED)
        left, right = (0, 0, border, height), (border, 0, width, height)
        stem = str(folder / photo.stem)
        training += _cut(picture, left, per_photo, label, f"{stem}-train", rng)
        held_out += _cut(picture, right, per_photo // 4, label, f"{stem}-test", rng)
    return training, held_out


def _cut(
    picture: Image.Image,
    box: tuple[int, int, int, int],
    count: int,
    label: int,
    stem: str,
    rng: np.random.Generator,
) -> list[Crop]:
    """Write crops from random places inside a box (left, top, right, bottom)."""
    xs = rng.integers(box[0], box[2] - STORED, size=count, endpoint=True).tolist()
    ys = rng.integers(box[1], box[3] - STORED, size=count, endpoint=True).tolist()
    crops = []
    for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
        path = Path(f"{stem}-{number:04d}.jpg")
        picture.crop((x, y, x + STORED, y + STORED)).save(path, quality=90)
        crops.append(Crop(path, label))
    return crops


class Waiting:
    """Wraps a loader and adds up the seconds spent waiting for its batches."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Any]:
        began = time.perf_counter()
        for batch in self.batches:
            self.seconds += time.perf_counter() - began
            yield batch
            began = time.perf_counter()


@dataclass(frozen=True)
class Epoch:
    """What one epoch of training showed."""

    loss: float
    """Mean over the batches."""

    waiting: float
    """Share of the time that went into waiting for batches, 0 to 1."""


def train_epoch(model: Model, loader: Iterable[Any]) -> Epoch:
    """Train on every batch once."""
    began = time.perf_counter()
    batches = Waiting(loader)
    losses = [model.step(images, labels) for images, labels in batches]
    total = time.perf_counter() - began
    return Epoch(sum(losses) / len(losses), batches.seconds / total)


def accuracy(model: Model, loader: Iterable[Any]) -> float:
    """Share of the samples whose label the model tells."""
    hits = [
        model.predict(images) == np.asarray(labels, dtype=np.intp)
        for images, labels in loader
    ]
    return float(np.concatenate(hits).mean())


def digest(loader: DataLoader[Any], epochs: int) -> str:
    """Return a digest of every byte of every batch of some epochs."""
    seen = hashlib.sha256()
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for images, labels in loader:
            seen.update(np.ascontiguousarray(images).tobytes())
            seen.update(np.asarray(labels, dtype=np.int64).tobytes())
    return seen.hexdigest()[:16]


class Demo:
    """The steps of the demo, on files that are there."""

    def __init__(
        self, options: argparse.Namespace, training: list[Crop], held_out: list[Crop]
    ) -> None:
        self.options = options
        self.training = PhotoCrops(training, augmented=True)
        self.held_out = PhotoCrops(held_out, augmented=False)
        # The NumPy model wants arrays also where torch is installed.
        self.collate = (
            dataloader.torch_collate if options.torch else dataloader.numpy_collate
        )

    def loader(self, workers: int, seed: int) -> DataLoader[Any]:
        """Make a loader of the augmented crops."""
        return DataLoader(
            self.training,
            batch_size=64,
            shuffle=True,
            num_workers=workers,
            collate_fn=self.collate,
            seed=seed,
        )

    def measure(self) -> None:
        """Print how fast loading is alone."""
        for workers in (0, self.options.workers):
            with self.loader(workers, self.options.seed) as loader:
                began = time.perf_counter()
                count = sum(len(labels) for _, labels in loader)
                rate = count / (time.perf_counter() - began)
            report("loading alone", f"{workers} workers: {rate:,.0f} samples/s")

    def train(self) -> None:
        """Train, and print how that goes."""
        make = TorchModel if self.options.torch else NumpyModel
        classes = len({crop.label for crop in self.training.crops})
        model: Model = make(classes, self.options.seed)
        evaluation = DataLoader[Any](
            self.held_out,
            batch_size=64,
            num_workers=self.options.workers,
            collate_fn=self.collate,
        )
        report("training", f"{make.__name__}, {classes} classes")
        report("untrained", f"accuracy {accuracy(model, evaluation):.0%} on held-out")
        with self.loader(0, self.options.seed) as loader:
            self._epoch(1, model, loader, evaluation)
        with evaluation, self.loader(self.options.workers, self.options.seed) as loader:
            for epoch in range(2, self.options.epochs + 1):
                loader.set_epoch(epoch - 1)
                self._epoch(epoch, model, loader, evaluation)

    def _epoch(
        self, number: int, model: Model, loader: DataLoader[Any], held_out: Any
    ) -> None:
        shown = train_epoch(model, loader)
        report(
            f"epoch {number}",
            f"loss {shown.loss:.3f}, accuracy {accuracy(model, held_out):.0%} on "
            f"held-out, {shown.waiting:.0%} of the step time waiting for data "
            f"({loader.num_workers} workers)",
        )

    def compare(self) -> bool:
        """Print digests of runs that must or must not agree; tell if all is well."""
        seed, workers = self.options.seed, self.options.workers
        digests = []
        for run_workers, run_seed in ((0, seed), (workers, seed), (workers, seed + 1)):
            with self.loader(run_workers, run_seed) as loader:
                digests.append(digest(loader, epochs=2))
            report(
                f"seed {run_seed}",
                f"2 epochs with {run_workers} workers: digest {digests[-1]}",
            )
        well = digests[0] == digests[1] != digests[2]
        report("same batches", "yes, with one seed" if well else "NO: this is a bug")
        return well


def report(what: str, text: str) -> None:
    """Print a line of the report."""
    print(f"{what:14}{text}", flush=True)


def find_photos(folder: Path) -> list[Path]:
    """Return the pictures of a folder that are large enough, in order of name."""
    paths = sorted(
        path for path in folder.iterdir() if path.suffix in (".jpg", ".jpeg", ".png")
    )
    return [path for path in paths if _size(path) >= 3 * STORED]


def _size(path: Path) -> int:
    with Image.open(path) as picture:
        return min(picture.size)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("photos", type=Path, help="a folder of pictures")
    parser.add_argument("--torch", action="store_true", help="a small torch model")
    cores = min(os.cpu_count() or 1, 8)
    parser.add_argument("--workers", type=int, default=cores, help="worker threads")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of training")
    parser.add_argument("--crops", type=int, default=240, help="files a photograph")
    parser.add_argument("--seed", type=int, default=0, help="decides everything drawn")
    options = parser.parse_args(arguments)
    if options.torch and importlib.util.find_spec("torch") is None:
        parser.error("--torch needs torch, which is not installed")
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    return options


def main(arguments: list[str]) -> int:
    """Run the demo; return 0 if runs with one seed saw the same batches."""
    began = time.perf_counter()
    options = parse(arguments)
    photos = find_photos(options.photos)
    if len(photos) < 2:
        print(f"{options.photos} must hold at least 2 pictures of 288 x 288 or more")
        return 2
    gil = "on" if getattr(sys, "_is_gil_enabled", lambda: True)() else "off"
    report("interpreter", f"Python {platform.python_version()}, GIL {gil}")
    with tempfile.TemporaryDirectory(prefix="photo-crops-") as folder:
        training, held_out = cut_files(
            photos, Path(folder), options.crops, options.seed
        )
        report(
            "files",
            f"{len(training)} JPEG files for training and {len(held_out)} held out, "
            f"cut from {len(photos)} photographs",
        )
        demo = Demo(options, training, held_out)
        demo.measure()
        demo.train()
        well = demo.compare()
    report("done", f"in {time.perf_counter() - began:.0f} s")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
