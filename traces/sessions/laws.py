"""Named laws of what sessions are made of: how many turns, how many tokens, how many seconds.

Each gives its quantile function, so that draws of one session or one prompt group can go together.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import fields
from scipy.special import gammaincinv, ndtri

from tlt.traces.common.arrays import Floats
from tltsched.errors import InputError, look_up
from tltsched.written.parameters import parameters_text, split_parameters, with_parameters

MOST = 1e9  # of a median, mean or scale; beyond any token count and any seconds
MOST_SHAPE = 50.0


class Law(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="law"):
    """A law of positive values."""

    def __post_init__(self) -> None:
        for field in fields(type(self)):
            value = getattr(self, field.name)
            if not isinstance(value, float | int):
                continue
            most = MOST_SHAPE if field.name in ("sigma", "shape") else MOST
            low = 1e-3 if field.name in ("sigma", "shape") else 0.0
            if not low <= value <= most:  # NaN too
                raise InputError(
                    f"{field.name} of {self.__struct_config__.tag}", value, f"{low:g} to {most:g}",
                    "give the parameter that the law has",
                )  # fmt: skip

    def quantile(self, uniforms: Floats) -> Floats:
        """Return the values below which these shares, in [0, 1), of all lie."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the law as it is written on a command line."""
        return f"{self.__struct_config__.tag}({parameters_text(self)})"


class Constant(Law, frozen=True, kw_only=True, tag="constant"):
    """Always the same."""

    value: float = 0.0

    def quantile(self, uniforms: Floats) -> Floats:
        """Return the value, once for each."""
        return np.full(np.shape(uniforms), float(self.value))


class Exponential(Law, frozen=True, kw_only=True, tag="exponential"):
    """What has no memory: waits for events that come at one rate."""

    mean: float = 1.0

    def quantile(self, uniforms: Floats) -> Floats:
        """Return -mean log(1 - u)."""
        return np.asarray(-self.mean * np.log1p(-np.asarray(uniforms)))


class Geometric(Law, frozen=True, kw_only=True, tag="geometric"):
    """Whole numbers from 1: each further one comes with the same chance, 1 - 1 / mean."""

    mean: float = 1.0

    def quantile(self, uniforms: Floats) -> Floats:
        """Return the smallest n with 1 - (1 - 1 / mean)^n >= u."""
        stop = 1.0 / max(float(self.mean), 1.0)
        if stop >= 1:
            return np.ones(np.shape(uniforms))
        return np.asarray(np.maximum(np.ceil(np.log1p(-np.asarray(uniforms)) / np.log1p(-stop)), 1.0))


class Lognormal(Law, frozen=True, kw_only=True, tag="lognormal"):
    """Values whose logarithm is normal."""

    median: float = 1.0
    sigma: float = 1.0

    def quantile(self, uniforms: Floats) -> Floats:
        """Return median exp(sigma z) at the normal quantile z."""
        return self.median * np.exp(self.sigma * ndtri(uniforms))


class Gamma(Law, frozen=True, kw_only=True, tag="gamma"):
    """Sums of waits: `shape` of them if it is a whole number."""

    mean: float = 1.0
    shape: float = 1.0

    def quantile(self, uniforms: Floats) -> Floats:
        """Return the inverse of the regularised incomplete gamma function, scaled to the mean."""
        return np.asarray(gammaincinv(self.shape, uniforms) * self.mean / self.shape)


class Weibull(Law, frozen=True, kw_only=True, tag="weibull"):
    """Stretched exponential: shapes below 1 have long tails."""

    scale: float = 1.0
    shape: float = 1.0

    def quantile(self, uniforms: Floats) -> Floats:
        """Return scale (-log(1 - u))^(1 / shape)."""
        return self.scale * (-np.log1p(-np.asarray(uniforms))) ** (1 / self.shape)


class Recorded(Law, frozen=True, kw_only=True, tag="recorded"):
    """Quantiles of what was recorded, evenly spaced from the least to the most; between them a line."""

    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        values = np.asarray(self.quantiles, float)
        if len(values) < 2 or not np.all(np.isfinite(values)) or values[0] < 0 or np.any(np.diff(values) < 0):
            raise InputError(
                "quantiles", f"{len(values)} values", "2 or more, 0 or above, ascending", "fit the law again"
            )

    def quantile(self, uniforms: Floats) -> Floats:
        """Return the recorded values at these shares."""
        return np.interp(uniforms, np.linspace(0, 1, len(self.quantiles)), self.quantiles)

    def text(self) -> str:
        """Return its name: quantiles are not written on a command line."""
        return f"recorded, {self.quantiles[0]:,.4g} to {self.quantiles[-1]:,.4g}"


AnyLaw = Constant | Exponential | Geometric | Lognormal | Gamma | Weibull | Recorded
WRITTEN: dict[str, AnyLaw] = {
    "constant": Constant(),
    "exponential": Exponential(),
    "geometric": Geometric(),
    "lognormal": Lognormal(),
    "gamma": Gamma(),
    "weibull": Weibull(),
}


class Quantity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A law with what holds draws together, and how it was found.

    zero_share: share of zeros, which the law itself has not.
    correlation: rho of a Gaussian copula; between which draws, SessionLaws says.
    values, cut, ks: of a fit: values used, how many of them were cut (the value is at least that), and the
    largest distance to the recorded distribution; None: not fitted, or the recorded quantiles.
    """

    law: AnyLaw
    zero_share: float = 0.0
    correlation: float = 0.0
    values: int | None = None
    cut: int = 0
    ks: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.zero_share <= 1:
            raise InputError("zero_share", self.zero_share, "0 to 1", "give the share of zeros")
        if not 0 <= self.correlation < 1:
            raise InputError("correlation", self.correlation, "0 <= rho < 1", "0 means independent draws")

    def quantile(self, uniforms: Floats) -> Floats:
        """Return values at shares in [0, 1): zeros first, then the law."""
        if self.zero_share >= 1:
            return np.zeros(np.shape(uniforms))
        above = np.clip((uniforms - self.zero_share) / (1 - self.zero_share), 0.0, None)
        return np.where(uniforms < self.zero_share, 0.0, self.law.quantile(above))

    def text(self) -> str:
        """Return the law in words."""
        parts = [self.law.text()]
        if self.zero_share:
            parts.append(f"{self.zero_share:.1%} zero")
        if self.correlation:
            parts.append(f"correlation {self.correlation:.2f}")
        return ", ".join(parts)


def parse_law(text: str, field: str) -> AnyLaw:
    """Return the law that a text names: `lognormal(median=1.5, sigma=1.2)`, or a number, which is constant.

    Raises InputError for `field` that lists the laws or their parameters.
    """
    try:
        value = float(text)
    except ValueError:
        name, given = split_parameters(text, field)
        law = look_up(WRITTEN, field, name)
        return with_parameters(law, given, "law", listed="tlt trace sample --help")
    return Constant(value=value)
