"""Arithmetic that gives the same bits on every CPU.

IEEE 754 fixes ``+ - * /`` and the square root. It does not fix logarithms, exponentials and cosines, which math
libraries compute differently from CPU to CPU, nor the order in which BLAS adds a product up. So:

- logarithms are looked up in a table of whole numbers, and random directions are sums of hashed bytes;
- sums that BLAS or numpy makes are of multiples of one power of two, few enough bits wide for every partial sum to be
  exact: then their order makes no difference (``to_grid``).
"""

from __future__ import annotations

from hashlib import shake_128
from math import ldexp

import numpy as np
from numpy.typing import NDArray

from steelyard.records import Floats

Z90 = 1.2815515655446004  # the standard normal distribution's 90th percentile
MICROSECOND = 20  # bits: of a second
OCTAVE = 188  # steps of ``octaves_of`` to a factor of two, so that `surface.py` can divide by a power of two
SIGMA = 256.0  # standard deviation of ``bell``
_BYTES = 12  # summed up to one draw: near enough to a normal distribution, and it ends at six deviations
_FRACTION = 9  # bits of a number's fraction that its logarithm is looked up by
_FINER = np.array(52 - _FRACTION)  # bits of a double that are not; numpy takes longer to work with a plain number
_EXPONENTS = 64  # in the table, from 2 ** 0 on; a place in it is the first bits modulo its length
_FRACTIONS = [(each**OCTAVE).bit_length() - 1 - _FRACTION * OCTAVE for each in range(1 << _FRACTION, 2 << _FRACTION)]
_OCTAVES = np.roll(
    np.array([OCTAVE * exponent + part for exponent in range(_EXPONENTS) for part in _FRACTIONS], np.float64),
    (1023 << _FRACTION) % (_EXPONENTS << _FRACTION),
)
_LN2 = 0.6931471805599453
_LARGE = np.array(ldexp(1.5, 52))
_TERMS = 20  # of the exponential's series, which leaves less than 1e-16


def octaves_of(doubles: bytes) -> Floats:
    """The logarithms to base 2 of numbers from 1 to 2 ** 62, packed as doubles: rounded down to multiples of
    1 / ``OCTAVE``, in such steps.

    The first bits of a double are its exponent and fraction, and so its place in a table.
    """
    found: Floats = _OCTAVES.take(np.right_shift(np.frombuffer(doubles, np.int64), _FINER), None, None, "wrap")
    return found


def exponential(value: float) -> float:
    """e to some power."""
    twos = round(value / _LN2)
    rest = value - twos * _LN2
    total = 1.0
    for term in range(_TERMS, 0, -1):
        total = 1.0 + total * rest / term
    return ldexp(total, twos)


def bell(name: str, count: int) -> Floats:
    """Whole numbers that follow from a name, distributed about normally around 0 with deviation ``SIGMA``."""
    drawn = np.frombuffer(shake_128(name.encode()).digest(_BYTES * count), dtype=np.uint8)
    sums = drawn.reshape(count, _BYTES).sum(axis=1, dtype=np.int64)
    found: Floats = (sums - _BYTES * 255 // 2).astype(np.float64)
    return found


def last_bits(values: Floats, mask: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last bits of the nearest whole numbers. ``values`` are used up.

    Added to so large a number, a value's whole part is what the last bits say.
    """
    found: NDArray[np.int64] = np.add(values, _LARGE, values).view(np.int64)
    np.bitwise_and(found, mask, found)
    return found


def power(base: Floats, exponent: int) -> Floats:
    """Each number to a whole power of at least 1."""
    squares, found = base, base
    exponent -= 1
    while exponent:
        found = found * squares if exponent % 2 else found
        squares, exponent = squares * squares, exponent // 2
    return found


def to_grid(values: Floats, bits: int, out: Floats | None = None) -> Floats:
    """The nearest multiples of 2 ** -``bits``. Values have to be below 2 ** (51 - ``bits``).

    Adding so large a number leaves no room for what is finer.
    """
    large = ldexp(1.5, 52 - bits)
    found: Floats = np.add(values, large, out)
    np.subtract(found, large, found)
    return found
