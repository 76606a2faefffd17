"""Images and sounds, by their headers alone."""

import warnings
import wave
from collections.abc import Sequence
from pathlib import Path

from openmle_gym.contracts import Contract

try:
    from PIL import Image
except ImportError:  # the extra is not installed
    Image = None

IMAGES = frozenset([".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm"])
SOUNDS = frozenset([".wav", ".mp3", ".flac", ".ogg", ".m4a", ".aif", ".aiff"])
EXAMINED = 200
"""Files of a group whose headers are read, at even distances."""


class FileGroup(Contract):
    """The files of one folder with one suffix."""

    folder: str
    """Relative to the raw data; empty for the top."""
    suffix: str
    kind: str
    """`image`, `audio`, `text` or `other`."""
    files: int
    bytes: int
    examples: tuple[str, ...] = ()
    facts: str = ""
    """Sizes of images, lengths and rates of sounds; of the files that were examined."""
    unreadable: int = 0
    """Of the files that were examined, those whose header cannot be read."""


def spread(files: Sequence[Path], most: int = EXAMINED) -> list[Path]:
    """Some of the files, at even distances."""
    if len(files) <= most:
        return list(files)
    return [files[place * len(files) // most] for place in range(most)]


def image_facts(files: Sequence[Path]) -> tuple[str, int]:
    """Widths, heights and modes, and how many headers cannot be read."""
    if Image is None:
        return "not examined: install openmle-gym[build]", 0
    sizes: set[tuple[int, int]] = set()
    modes: set[str] = set()
    unreadable = 0
    for path in spread(files):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(path) as image:
                    sizes.add(image.size)
                    modes.add(image.mode)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            unreadable += 1
    if not sizes:
        return "", unreadable
    widths, heights = zip(*sizes, strict=True)
    return f"{_range(widths)} x {_range(heights)} pixels, mode {', '.join(sorted(modes))}", unreadable


def sound_facts(files: Sequence[Path]) -> tuple[str, int]:
    """Lengths, rates and channels of WAV files, and how many headers cannot be read."""
    lengths: set[float] = set()
    rates: set[int] = set()
    channels: set[int] = set()
    unreadable = 0
    for path in spread([path for path in files if path.suffix.casefold() == ".wav"]):
        try:
            with wave.open(str(path), "rb") as sound:
                rates.add(sound.getframerate())
                channels.add(sound.getnchannels())
                lengths.add(round(sound.getnframes() / max(sound.getframerate(), 1), 2))
        except (wave.Error, EOFError, OSError):
            unreadable += 1
    if not rates:
        return "", unreadable
    return f"{_range(lengths)} s, {_range(rates)} Hz, {_range(channels)} channels", unreadable


def _range(values: Sequence[float] | set[float] | set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
