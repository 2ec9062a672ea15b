"""Two small models that learn to tell images apart, in NumPy and in torch."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


class Model(Protocol):
    """What the training loop asks of a model."""

    def step(self, images: Any, labels: Any) -> float:
        """Learn from a batch and return its loss."""

    def predict(self, images: Any) -> NDArray[np.intp]:
        """Return the label that each image most likely has."""


class NumpyModel:
    """One hidden layer over colours, contrasts and edges in 4 x 4 cells."""

    def __init__(self, classes: int, seed: int, hidden: int = 64) -> None:
        rng = np.random.default_rng(seed)
        inputs = 4 * 4 * 3 * 3
        shapes = ((inputs, hidden), (1, hidden), (hidden, classes), (1, classes))
        # Biases, the ones with one row, start at zero.
        spreads = (np.sqrt(2 / inputs), 0, np.sqrt(2 / hidden), 0)
        self.weights = [
            rng.normal(0, spread, shape).astype(np.float32)
            for spread, shape in zip(spreads, shapes, strict=True)
        ]
        self.momenta = [np.zeros_like(weight) for weight in self.weights]

    def step(self, images: Floats, labels: Labels) -> float:
        """Learn from a batch by gradient descent with momentum."""
        inputs = features(images)
        hidden, odds = self._forward(inputs)
        rows = np.arange(len(labels))
        loss = -np.log(odds[rows, labels] + 1e-9).mean()
        odds[rows, labels] -= 1
        odds /= len(labels)
        back = (odds @ self.weights[2].T) * (hidden > 0)
        gradients = (inputs.T @ back, back, hidden.T @ odds, odds)
        for weight, momentum, gradient in zip(
            self.weights, self.momenta, gradients, strict=True
        ):
            momentum *= 0.9
            # A bias has one row; its gradient is the sum over the batch.
            momentum += gradient.sum(0, keepdims=True) if len(weight) == 1 else gradient
            weight -= 0.02 * momentum
        return float(loss)

    def predict(self, images: Floats) -> NDArray[np.intp]:
        """Return the most likely label of each image."""
        best: NDArray[np.intp] = self._forward(features(images))[1].argmax(1)
        return best

    def _forward(self, inputs: Floats) -> tuple[Floats, Floats]:
        first, first_bias, second, second_bias = self.weights
        hidden = np.maximum(inputs @ first + first_bias, 0)
        scores = hidden @ second + second_bias
        odds = np.exp(scores - scores.max(1, keepdims=True))
        return hidden, odds / odds.sum(1, keepdims=True)


def features(images: Floats) -> Floats:
    """Mean, contrast and edges of each colour in each cell: shape (n, 144)."""
    means = cell_means(images)
    contrasts = np.sqrt(np.maximum(cell_means(images * images) - means * means, 0))
    edges = cell_means(np.abs(images[:, ::2] - images[:, 1::2]))
    parts = (4 * (means - 0.5), 8 * (contrasts - 0.1), 16 * (edges - 0.05))
    return np.concatenate(parts, axis=1)


def cell_means(images: Floats) -> Floats:
    """Mean of each colour in 4 x 4 cells of each image: shape (n, 48)."""
    count, height, width, _ = images.shape
    # Rows first: their sum runs over long stretches of memory, and little is left.
    rows = images.reshape(count, 4, height // 4, width * 3).mean(2)
    cells: Floats = rows.reshape(count, 4, 4, width // 4, 3).mean(3)
    return cells.reshape(count, 48)


class TorchModel:
    """Three convolutions and a linear layer."""

    def __init__(self, classes: int, seed: int) -> None:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        layers: list[Any] = []
        for fan_in, fan_out in ((3, 12), (12, 24), (24, 48)):
            layers += [nn.Conv2d(fan_in, fan_out, 3, stride=2), nn.ReLU()]
        pool = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * 48, classes))
        self.net = nn.Sequential(*layers, *pool)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)

    def step(self, images: Any, labels: Any) -> float:
        """Learn from a batch."""
        from torch.nn.functional import cross_entropy

        loss = cross_entropy(self.net(self._inputs(images)), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def predict(self, images: Any) -> NDArray[np.intp]:
        """Return the most likely label of each image."""
        import torch

        with torch.inference_mode():
            best: NDArray[np.intp] = self.net(self._inputs(images)).argmax(1).numpy()
        return best

    def _inputs(self, images: Any) -> Any:
        return images.permute(0, 3, 1, 2) * 2 - 1
