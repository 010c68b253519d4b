"""Overlap with the calibration text: found at any place, measured in tokens, and not by chance."""

import pytest
import torch

from grasp_deploy.data.overlap import (
    WINDOW_TOKENS,
    calibrated_share,
    fingerprint,
)


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1000, shape, generator=torch.Generator().manual_seed(seed))


def known_of(blocks: torch.Tensor) -> torch.Tensor:
    known = fingerprint(blocks)
    assert known is not None
    return known


def naive_share(text: torch.Tensor, blocks: torch.Tensor) -> float:
    """The share of tokens in windows of the calibration text, by comparing lists."""
    width, length = WINDOW_TOKENS, blocks.shape[1]
    starts = [*range(0, length - width + 1, width), length - width]
    known = {tuple(row[start : start + width].tolist()) for row in blocks for start in starts}
    covered = set()
    for start in range(len(text) - width + 1):
        if tuple(text[start : start + width].tolist()) in known:
            covered |= set(range(start, start + width))
    return len(covered) / len(text)


@pytest.mark.parametrize("length", [32, 64, 80, 100])
def test_the_share_is_that_of_comparing_every_window(length: int) -> None:
    blocks = tokens(6, length) % 3  # of few words, so that parts repeat
    running = blocks.flatten()
    texts = {
        "all of it": running,
        "from the middle of a window": running[45:-7],
        "a part": torch.cat([tokens(37, seed=1), running[10:150], tokens(90, seed=2)]),
        "other text": tokens(500, seed=3) % 3,
        "no window": running[:31],
    }
    known = known_of(blocks)
    for name, text in texts.items():
        assert calibrated_share(text, known) == naive_share(text, blocks), name
    assert calibrated_share(running, known) == 1
    assert 0 < calibrated_share(texts["a part"], known) < 140 / 267


def test_the_hash_never_changes() -> None:
    """Plans that were written hold it: another hash would silently find nothing in any text."""
    known = known_of(torch.arange(64).view(1, 64))
    assert known.tolist() == sorted(map(reference_hash, (range(32), range(32, 64))))


def reference_hash(window: range) -> int:
    """The hash in whole numbers."""
    total, factor, bits = 0, 0x9E3779B97F4A7C15, 2**64
    for token in window:
        x = (token + 1) * factor % bits
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % bits
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % bits
        total = (total * factor + (x ^ (x >> 31))) % bits
    return total - bits if total >= bits // 2 else total
