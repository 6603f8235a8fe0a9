"""Latencies as HdrHistograms: they merge, over rounds and machines, and keep three digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from queueproof.bench.figures import BenchError
from queueproof.errors import to_install

if TYPE_CHECKING:
    from hdrh.histogram import HdrHistogram

LEAST, MOST = 1, 3_600_000_000  # microseconds
DIGITS = 3  # significant: an error of a per mille
SHARES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}  # per cent


def empty() -> HdrHistogram:
    """A histogram of microseconds."""
    try:
        from hdrh.histogram import HdrHistogram  # noqa: PLC0415 - an extra, for open loops alone
    except ImportError:
        raise BenchError(f"--rate needs hdrhistogram: {to_install('bench')}") from None
    return HdrHistogram(LEAST, MOST, DIGITS)


def encoded(latencies: Iterable[float]) -> str:
    """A histogram of latencies in seconds, in HdrHistogram's own encoding."""
    histogram = empty()
    for latency in latencies:
        histogram.record_value(max(LEAST, round(latency * 1e6)))
    return str(histogram.encode(), "ascii")


def at(histograms: Sequence[str], shares: Iterable[float]) -> list[float]:
    """Seconds that so many per cent of all latencies do not exceed, of encoded histograms."""
    merged = empty()
    for histogram in histograms:
        merged.decode_and_add(histogram)
    return [merged.get_value_at_percentile(share) / 1e6 for share in shares]
