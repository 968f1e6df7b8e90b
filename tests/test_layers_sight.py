"""How much of an image a stack of convolutions sees, against a loop over its pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scae_jax.layers.convnet import ConvNet, Convolution
from scae_jax.layers.sight import Window, require_sight, seen_share

WINDOWS = st.builds(Window, st.integers(1, 5), st.integers(1, 7), st.integers(0, 2))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 24), st.lists(WINDOWS, min_size=0, max_size=3))
def test_share_is_that_of_the_pixels_that_reach_the_last_map(side, windows):
  """Kernels of ones: every way from a pixel to the last map counts, and none cancels."""

  def last_map(line):
    for window in windows:
      line = np.pad(line, window.margin)
      starts = range(0, len(line) - window.kernel + 1, window.stride)
      line = np.array([line[start : start + window.kernel].sum() for start in starts])
    return line

  reaches = [last_map(pixel).sum() > 0 for pixel in np.eye(side)]
  assert seen_share(side, windows) == pytest.approx(np.mean(reaches) ** 2)


@pytest.mark.parametrize(
  ("side", "windows", "message"),
  [
    # What trained without a word: 2 and 42 % of the pixels.
    (20, [Window(3, 18)], r"config.model.strides 18 and config.data.canvas 20 features see 2.2%"),
    (20, [Window(5, 1), Window(9, 9)], "features see 42.3%.*or set config.data.canvas to 22"),
    (20, [Window(3, 2)] * 5, r"the feature map shrinks to nothing \(20 -> 9 -> 4 -> 1 -> 0\)"),
  ],
)
def test_models_that_see_too_little_are_refused(side, windows, message):
  with pytest.raises(ValueError, match=message):
    require_sight(side, windows, {"model.strides": 18})


@pytest.mark.parametrize("shape", [(1, 4, 9, 1), (1, 9, 4, 1)])
@pytest.mark.parametrize("layer", [Convolution(2, 5), ConvNet((2, 2, 2), (1, 1, 1))])
def test_layers_that_leave_nothing_of_a_map_are_refused(layer, shape):
  with pytest.raises(ValueError, match=r"shrinks to nothing \(4 -> .*0\); enlarge"):
    jax.eval_shape(layer.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32))
