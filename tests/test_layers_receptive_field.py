"""How much of an image a stack of convolutions sees, against a loop over its pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax.layers.convnet import ConvNet, Convolution
from scae_jax.layers.receptive_field import Window, covered_side, require_receptive_field

# Kernels at least as large as their strides, and margins up to that of a map that keeps its size.
WINDOWS = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2)).map(
  lambda sizes: Window(sizes[0], min(sizes[:2]), min(sizes[2], sizes[0] // 2))
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 24), st.lists(WINDOWS, min_size=0, max_size=3))
def test_last_pixel_that_reaches_the_last_map(side, windows):
  """Kernels of ones: every way from a pixel to the last map counts, and none cancels."""
  line = np.eye(side)  # a pixel each row
  for window in windows:
    line = np.pad(line, ((0, 0), (window.margin, window.margin)))
    starts = range(0, line.shape[1] - window.kernel + 1, window.stride)
    if not starts:
      with pytest.raises(ValueError, match=r" -> 0\)"):
        covered_side(side, windows)
      return
    columns = [line[:, start : start + window.kernel].sum(axis=1) for start in starts]
    line = np.stack(columns, axis=1)
  assert covered_side(side, windows) == np.flatnonzero(line.sum(axis=1))[-1] + 1


@pytest.mark.parametrize(
  ("side", "windows"),
  [(20, [Window(3, 18)]), (20, [Window(5, 1), Window(9, 9)]), (20, [Window(3, 2)] * 5)],
)
def test_models_that_see_too_little_are_refused(side, windows):
  with pytest.raises(ValueError, match=r"config\.model\.strides 18\b.*config\.data\.canvas 20\b"):
    require_receptive_field(side, windows, {"model.strides": 18})


@pytest.mark.parametrize("shape", [(1, 4, 9, 1), (1, 9, 4, 1)])
@pytest.mark.parametrize("layer", [Convolution(2, 5), ConvNet((2, 2, 2), (1, 1, 1))])
def test_layers_that_leave_nothing_of_a_map_are_refused(layer, shape):
  with pytest.raises(ValueError, match=r"\(4 -> .*0\)"):
    jax.eval_shape(layer.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32))
