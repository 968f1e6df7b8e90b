"""Single precision and free transfers, whatever a program has set for its own use of JAX."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def single_precision(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
  """Wraps a function so that `jax_enable_x64` is off while it runs: arrays default to float32.

  The program's `jax.transfer_guard` does not apply to it either: it takes NumPy arrays.
  """

  @functools.wraps(function)
  def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
    with jax.enable_x64(False), jax.transfer_guard("allow"):
      return function(*args, **kwargs)

  return run
