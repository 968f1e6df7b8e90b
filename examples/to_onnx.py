"""Writes `encode` and `draw` of a model of images as ONNX, and compares them with JAX.

jax2onnx asks for an older orbax than training does, so this has an environment of its own:

    python3 -m venv .venv-onnx
    .venv-onnx/bin/pip install -r examples/requirements-onnx.txt
    PYTHONPATH=. .venv-onnx/bin/python examples/to_onnx.py mnist onnx

The first argument is a pretrained name, or a folder that experiments/export.py wrote. Inputs and
outputs are named as those of `Model.export`; the files take one example at a time.
"""

import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np
import onnxruntime
from jax.interpreters.partial_eval import dce_jaxpr
from jax2onnx import to_onnx

import scae_jax
from scae_jax.library.export import functions_of

NUM_RUNS = 100


def write(path: pathlib.Path, function: Any, shapes: tuple[Any, ...]) -> dict[str, int]:
  """One function as one file; returns its outputs by name: which of the function's they are.

  What it does not use is no input, and what it gives under two names is an output once.
  """
  # As a jaxpr it has no call that jax2onnx replaces by a version of its own.
  traced, result = jax.make_jaxpr(function, return_shape=True)(*shapes)
  program, is_used = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
  last = {id(variable): i for i, variable in enumerate(program.outvars)}
  names = names_of((result,))
  outputs = {names[i]: i for i in sorted(last.values())}

  def flat(*arrays: Any) -> tuple[Any, ...]:
    results = jax.core.eval_jaxpr(program, traced.consts, *arrays)
    return tuple(results[i] for i in outputs.values())

  inputs = dict(zip(names_of(shapes), jax.tree.leaves(shapes), strict=True))
  used = {name: shape for (name, shape), kept in zip(inputs.items(), is_used, strict=True) if kept}
  to_onnx(
    flat,
    list(used.values()),
    return_mode="file",
    output_path=str(path),
    input_names=list(used),
    output_names=list(outputs),
  )
  return outputs


def names_of(values: tuple[Any, ...]) -> list[str]:
  """A name for each array: its key in a dict; `image` and `number` stand alone."""
  names = []
  for value in values:
    alone = "number" if np.ndim(value) == 0 and not isinstance(value, dict) else "image"
    names += sorted(value) if isinstance(value, dict) else [alone]
  return names


def main(source: str, folder: str) -> None:
  """Writes the files, and prints sizes, the largest difference and milliseconds."""
  model = scae_jax.load(source)
  directory = pathlib.Path(folder)
  directory.mkdir(parents=True, exist_ok=True)
  functions = functions_of(model, 1)
  (shape,) = functions["encode"][1]
  arguments: tuple[Any, ...] = (np.random.RandomState(0).rand(*shape.shape).astype(shape.dtype),)
  for name, (function, shapes) in functions.items():
    path = directory / f"{name}.onnx"
    outputs = write(path, function, shapes)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    every = dict(zip(names_of(shapes), map(np.asarray, jax.tree.leaves(arguments)), strict=True))
    node_inputs = {node.name: every[node.name] for node in session.get_inputs()}
    expected = jax.device_get(jax.jit(function)(*arguments))
    actual = session.run(list(outputs), node_inputs)
    start = time.perf_counter()
    for _ in range(NUM_RUNS):
      session.run(None, node_inputs)
    milliseconds = (time.perf_counter() - start) / NUM_RUNS * 1e3
    leaves = jax.tree.leaves(expected)
    pairs = zip(actual, (leaves[i] for i in outputs.values()), strict=True)
    difference = max(float(np.abs(array - reference).max()) for array, reference in pairs)
    size = path.stat().st_size / 1e6
    print(f"{path}: {size:.1f} MB, difference {difference:.1e}, {milliseconds:.1f} ms")
    if name == "encode":
      arguments = (expected, np.int32(-1))


if __name__ == "__main__":
  main(*sys.argv[1:])
