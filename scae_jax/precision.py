"""Single precision, also in a program that has switched JAX to double precision."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def single_precision(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
  """The function with `jax_enable_x64` off while it runs: arrays are float32 by default."""

  @functools.wraps(function)
  def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
    with jax.enable_x64(False):
      return function(*args, **kwargs)

  return run
