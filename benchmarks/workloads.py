"""The datasets that loaders are compared on, and the collate function they share.

The workloads are those of dataloader-rs 0.2.0's comparison with PyTorch, rebuilt here
from its description so that figures can be set side by side. Every class is at module
level, as worker processes have to import it.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["VOCABULARY", "WORDS", "WORKLOADS", "stack_collate", "write_files"]

BATCH_SIZE = 32

_SENTENCE = "the quick brown fox jumps over the lazy dog"
WORDS = _SENTENCE.split() * 40
VOCABULARY = {word: number for number, word in enumerate(dict.fromkeys(WORDS))}
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
_STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


def stack_collate(samples: list[Any]) -> Any:
    """Stack arrays along a new first dimension; leave other samples in their list."""
    return np.stack(samples) if isinstance(samples[0], np.ndarray) else samples


class InMemory:
    """Returns the index: what is measured is the loader."""

    length = 16384

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index


class LocalFiles(InMemory):
    """Reads a file of 16 KiB and normalises it to float32 (64 KiB a sample)."""

    length = 4096

    def __init__(self) -> None:
        folder = os.environ["DATALOADER_BENCH_FILES"]
        self.paths = [f"{folder}/{i:06d}.bin" for i in range(self.length)]

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            data = np.frombuffer(file.read(), np.uint8).astype(np.float32)
        data /= 255
        data -= 0.5
        data /= 0.25
        return data


class ImageAugment(InMemory):
    """Crops, flips and normalises one of 64 images (147 KB a sample)."""

    length = 2048

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.images = [
            generator.integers(0, 256, (3, 128, 128), np.uint8) for _ in range(64)
        ]

    def __getitem__(self, index: int) -> Any:
        generator = np.random.default_rng(index)
        top, left = generator.integers(0, 17, 2)
        image = self.images[index % 64][:, top : top + 112, left : left + 112]
        if generator.random() < 0.5:
            image = image[:, :, ::-1]
        pixels = image.astype(np.float32)
        pixels /= 255
        pixels -= _MEAN
        pixels /= _STD
        return pixels


class Remote(InMemory):
    """Waits 10 ms, as for an object store, and returns 1 KB."""

    length = 512

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.010)
        return index.to_bytes(8, "little") * 128


class PythonCpu(InMemory):
    """Tokenises 360 words with a dictionary that all threads share."""

    length = 2048

    def __getitem__(self, index: int) -> Any:
        return _tokenise(WORDS, VOCABULARY, index)


class PythonCpuShare(PythonCpu):
    """The same after `share`, which is the process's: other loaders gain by it too."""

    def __init__(self) -> None:
        from dataloader import share

        share([WORDS, VOCABULARY])


class PythonCpuLocal(PythonCpu):
    """The same with words and dictionary built by each thread for itself."""

    local = threading.local()

    def __getitem__(self, index: int) -> Any:
        local = self.local
        if not hasattr(local, "words"):
            local.words = _SENTENCE.split() * 40
            local.vocabulary = {w: n for n, w in enumerate(dict.fromkeys(local.words))}
        return _tokenise(local.words, local.vocabulary, index)


def _tokenise(words: list[str], vocabulary: dict[str, int], index: int) -> Any:
    shift = index % 7
    for _ in range(3):
        ids = [vocabulary[word] + shift for word in words]
    tokens = np.zeros(512, np.int64)
    tokens[:256] = ids[:256]
    return tokens


WORKLOADS: dict[str, type[InMemory]] = {
    "in_memory": InMemory,
    "local_files": LocalFiles,
    "image_augment": ImageAugment,
    "remote": Remote,
    "python_cpu": PythonCpu,
    "python_cpu_share": PythonCpuShare,
    "python_cpu_local": PythonCpuLocal,
}


def write_files(folder: Path) -> None:
    """Write the files of `LocalFiles`: random bytes, the same in every run."""
    generator = np.random.default_rng(0)
    for i in range(LocalFiles.length):
        (folder / f"{i:06d}.bin").write_bytes(generator.bytes(16384))
