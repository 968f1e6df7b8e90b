"""Single precision, also in programs that use JAX in double precision."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def single_precision(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
  """Wraps a function so that `jax_enable_x64` is off while it runs: arrays default to float32."""

  @functools.wraps(function)
  def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
    with jax.enable_x64(False):
      return function(*args, **kwargs)

  return run
