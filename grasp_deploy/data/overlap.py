"""What a text has in common with the one that was calibrated on: windows of tokens.

The calibration text itself may be gone or on another machine, so a fingerprint travels with the
plan: hashes of windows that lie side by side. The other text is looked at from every place, since
the same words stand elsewhere in it.

    calibration    |---w---|---w---|---w---|      kept: hash(w), 8 bytes for 32 tokens
    evaluation       |---w---|
                      |---w---|  …                looked up: the hash at every place
"""

from typing import Any

import numpy
import torch
from torch import Tensor

WINDOW_TOKENS = 32  # long enough that no two texts share it by chance, short enough for a paragraph
MOST_WINDOWS = 2**16  # 2 million tokens, 512 KiB
NOTEWORTHY_SHARE = 0.01  # phrases and boilerplate that many texts share stay under it
FACTOR = numpy.uint64(0x9E3779B97F4A7C15)  # odd, its bits well mixed: 2^64 over the golden ratio

Array = numpy.ndarray[Any, Any]


def fingerprint(blocks: Tensor) -> Tensor | None:
    """`(w,)` int64, ascending: hashes of the windows in `(n, T)` sequences of calibration tokens.

    Windows lie side by side in a sequence, one more at its end where they do not fill it. Of more
    than MOST_WINDOWS evenly spread ones are kept. None for sequences shorter than a window.
    """
    length = blocks.shape[1]
    if length < WINDOW_TOKENS:
        return None
    starts = [*range(0, length - WINDOW_TOKENS, WINDOW_TOKENS), length - WINDOW_TOKENS]
    every = [blocks[:, start : start + WINDOW_TOKENS] for start in starts]
    windows = torch.stack(every, dim=1).flatten(0, 1)  # (n·k, 32)
    if len(windows) > MOST_WINDOWS:
        windows = windows[torch.linspace(0, len(windows) - 1, MOST_WINDOWS).round().long()]
    return torch.from_numpy(numpy.unique(_hashes(_scrambled(windows))))


def calibrated_share(token_ids: Tensor, calibrated: Tensor) -> float:
    """The share of a text's tokens that lie in a window of the calibration text.

    `token_ids` of any shape are one running text. `calibrated` is the `fingerprint` of the
    calibration text. Windows across the ends of its sequences, or left out, are not known: the true
    share may be larger.
    """
    tokens = _scrambled(token_ids.flatten())
    depth = numpy.zeros(len(tokens) + 1, numpy.int32)  # of windows that each token lies in
    if len(tokens) >= WINDOW_TOKENS:
        windows = numpy.lib.stride_tricks.sliding_window_view(tokens, WINDOW_TOKENS)
        starts = numpy.flatnonzero(numpy.isin(_hashes(windows), calibrated.numpy()))
        depth[starts] += 1
        depth[starts + WINDOW_TOKENS] -= 1
    covered = numpy.cumsum(depth)[:-1] > 0
    return float(covered.sum()) / max(1, len(covered))


def _hashes(windows: Array) -> Array:
    """`(w,)` int64: a polynomial modulo 2^64 of the scrambled tokens of `(w, 32)` windows."""
    hashes = numpy.zeros(len(windows), numpy.uint64)
    for column in windows.T:
        hashes *= FACTOR
        hashes += column
    return hashes.view(numpy.int64)


def _scrambled(token_ids: Tensor) -> Array:
    """Token ids as 64 random-looking bits each: small numbers would leave sums alike.

    SplitMix64 (Steele, Lea and Flood 2014): multiplications and shifts, each of them invertible.
    """
    bits = (token_ids.numpy().astype(numpy.uint64) + numpy.uint64(1)) * FACTOR
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> numpy.uint64(shift))) * numpy.uint64(factor)
    return bits ^ (bits >> numpy.uint64(31))
