"""Student's t distribution, from the incomplete beta function by its continued fraction."""

from __future__ import annotations

from math import exp, inf, lgamma, log, sqrt

_TINY = 1e-300
_EXACT = 1e-14
_TERMS = 500


def two_sided(t: float, freedom: float) -> float:
    """The probability of a value at least this far from 0, on either side."""
    if t == 0:
        return 1.0
    return _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def quantile(confidence: float, freedom: float) -> float:
    """The value that is exceeded on either side together with a probability of one less the confidence."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - confidence:
        high *= 2
        if high == inf:
            return inf
    while high - low > _EXACT * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if two_sided(middle, freedom) > 1 - confidence else (low, middle)
    return high


def welch_freedom(squares: tuple[float, float], counts: tuple[int, int]) -> float:
    """Degrees of freedom for a difference of two means whose squared standard errors these are."""
    parts = sum(square**2 / (count - 1) for square, count in zip(squares, counts, strict=True))
    return sum(squares) ** 2 / parts


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    if x > (a + 1) / (a + b + 2):  # where the fraction converges quickly only for the other tail
        return 1 - front * _fraction(1 - x, b, a) / b
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction, by Lentz's method."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, _TERMS):
        for step in (
            m * (b - m) / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / _away(1 + step * x * d), _away(1 + step * x / c)
            found *= c * d
        if abs(c * d - 1) < _EXACT:
            break
    return found


def _away(value: float) -> float:
    """The value, kept away from zero."""
    return value if abs(value) > _TINY else _TINY


def spread(values: list[float]) -> float:
    """The squared standard error of the mean."""
    mean = sum(values) / len(values)
    return sum((each - mean) ** 2 for each in values) / (len(values) - 1) / len(values)


def half_width(square: float, freedom: float, confidence: float) -> float:
    """Half the interval of a mean with this squared standard error."""
    return quantile(confidence, freedom) * sqrt(square)
