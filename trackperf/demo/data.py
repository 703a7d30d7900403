"""Handwritten digits as image files: decoding and augmenting them is the work that a loader does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["SIDE", "DigitImages", "Draws", "write_images"]

SIDE: Final = 32
"""Width and height of an image as the network sees it."""

_FILE_SIDE: Final = 144
"""Width and height of an image on disk: what makes decoding and turning it cost more than a millisecond."""

_VALIDATION: Final = 297
_SEED: Final = 7


class DigitImages:
    """
    Images in a folder with their labels; an item is decoded, and augmented, when it is asked for.

    An item's key is (draw, image): the augmentation is a matter of the draw alone, so that a training sees
    the same batches whatever number of workers prepares them.
    """

    def __init__(self, files: Sequence[Path], labels: Sequence[int]) -> None:
        """
        Args:
            files: the images.

            labels: the digit that each shows.
        """
        self.files = files
        self.labels = labels

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.files)

    def __getitem__(self, key: tuple[int, int]) -> tuple[NDArray[np.float32], int]:
        """Return an augmented image, shape (1, SIDE, SIDE), and its label."""
        from PIL import Image  # noqa: PLC0415 - only the demo needs it

        draw, index = key
        random = np.random.default_rng((_SEED, draw))
        with Image.open(self.files[index]) as image:
            turned = image.rotate(
                random.uniform(-12, 12),
                Image.Resampling.BICUBIC,
                translate=tuple(random.integers(-8, 9, 2).tolist()),
            )
            return _pixels(turned.resize((SIDE, SIDE), Image.Resampling.LANCZOS)), self.labels[index]

    def plain(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return all images as they are, and their labels, as two arrays."""
        from PIL import Image  # noqa: PLC0415 - as above

        pixels = []
        for file in self.files:
            with Image.open(file) as image:
                pixels.append(_pixels(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)))
        return np.stack(pixels), np.array(self.labels, dtype=np.int64)


class Draws:
    """The order of a training: so many images out of a set, shuffled anew when all have been seen."""

    def __init__(self, images: int, draws: int) -> None:
        """
        Args:
            images: size of the set.

            draws: how many to take.
        """
        self._images = images
        self._draws = draws

    def __len__(self) -> int:
        """Return the number of draws."""
        return self._draws

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (draw, image), the same each time."""
        random = np.random.default_rng(_SEED)
        order = random.permutation(self._images)
        for draw in range(self._draws):
            if draw and draw % self._images == 0:
                order = random.permutation(self._images)
            yield draw, int(order[draw % self._images])


def write_images(folder: Path) -> tuple[DigitImages, DigitImages]:
    """Write scikit-learn's digits as JPEG files and return those to train with and those to validate with."""
    from PIL import Image  # noqa: PLC0415 - as above
    from sklearn.datasets import load_digits  # noqa: PLC0415 - as above

    digits = load_digits()
    random = np.random.default_rng(_SEED)
    files = []
    for number, pixels in enumerate(digits.images):
        small = Image.fromarray((pixels * (255 / 16)).astype(np.uint8))
        large = np.asarray(small.resize((_FILE_SIDE, _FILE_SIDE), Image.Resampling.BICUBIC), dtype=np.float32)
        grain = random.normal(0, 12, large.shape).astype(np.float32)
        files.append(folder / f"{number:04}.jpg")
        Image.fromarray((large + grain).clip(0, 255).astype(np.uint8)).save(files[-1], quality=90)
    order = random.permutation(len(files)).tolist()
    labels = digits.target.tolist()
    parts = [order[_VALIDATION:], order[:_VALIDATION]]
    train, validation = (DigitImages([files[i] for i in part], [labels[i] for i in part]) for part in parts)
    return train, validation


def _pixels(image: object) -> NDArray[np.float32]:
    return np.asarray(image, dtype=np.float32)[None] / np.float32(255)
