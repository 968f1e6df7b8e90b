"""Part capsules against NumPy: outputs of the encoder, images of the decoder."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.special import expit, logit

from scae_jax.models.scae.pcae import MIXINGS, PartDecoder, PartEncoder
from tests.references import (
  affine_reference,
  random_pose,
  reference_colours,
  reference_picture,
  similarity_reference,
)
from tests.tiny import MODEL, PARTS, compiled, random_variables, tiny_batch

CANVAS = 8


def encoder_and_variables(**changes):
  """An encoder with the same output for every image, its last bias; and its variables."""
  fields = MODEL["part_encoder"] | {"compute_dtype": None} | changes
  module = PartEncoder(num_parts=PARTS, **fields)
  variables = random_variables(module, tiny_batch()["image"], train=False)
  (layer,) = variables["params"]["pooling"].values()
  layer["kernel"] = jnp.zeros_like(layer["kernel"])
  per_part = layer["bias"].reshape(PARTS, -1)
  return module, variables, np.asarray(per_part)


@pytest.mark.parametrize(
  ("pooling", "similarity"), [("attention", False), ("mean", True), ("linear", False)]
)
def test_encoder_by_its_bias(pooling, similarity):
  """Six numbers of a pose, a presence logit and the features, in this order."""
  module, variables, bias = encoder_and_variables(pooling=pooling, similarity=similarity)
  apply = compiled(functools.partial(module.apply, train=False))
  parts = jax.device_get(apply(variables, tiny_batch()["image"]))
  reference = similarity_reference if similarity else affine_reference
  for m in range(PARTS):
    # float32, with an angle of 2 pi x.
    np.testing.assert_allclose(parts.poses[1, m], reference(bias[m, :6]), atol=5e-6)
    np.testing.assert_allclose(parts.presence[1, m], expit(bias[m, 6]), atol=1e-6)
    np.testing.assert_allclose(parts.features[1, m], bias[m, 7:11], atol=1e-6)
  assert parts.features.shape[-1] == 4


@pytest.mark.parametrize("strides", [(2, 2, 1, 1), (2, 1), (3, 1, 2)])
def test_parts_of_cells_move_with_the_image(strides):
  """The image moves by whole cells, also to where its ink touches the edge of the canvas."""
  canvas, step = 40, math.prod(strides)
  rng = np.random.RandomState(0)
  ink = rng.uniform(size=(10, 7, 1)).astype(np.float32)
  corners = [(0, 0), (4, 9), (30, 33), (30, 1), (12, 20)]
  moves = [(step, 0), (2 * step, step), (-3 * step, -2 * step), (-step, 3 * step), (step, -step)]
  images = np.zeros((2, len(corners), canvas, canvas, 1), np.float32)
  for i, (corner, move) in enumerate(zip(corners, moves, strict=True)):
    for j, (row, column) in enumerate((corner, np.add(corner, move))):
      images[j, i, row : row + 10, column : column + 7] = ink
  shifts = 2 * np.array(moves)[:, ::-1] / (canvas - 1)  # x and y, in image coordinates
  follows = {}
  for places in ("cells", "free"):
    sizes = {"widths": (6,) * len(strides), "strides": strides}
    fields = MODEL["part_encoder"] | {"compute_dtype": None, "places": places} | sizes
    encoder = PartEncoder(num_parts=PARTS, **fields)
    variables = random_variables(encoder, jnp.asarray(images[0]), train=False)
    before, after = (
      jax.device_get(encoder.apply(variables, jnp.asarray(half), train=False)) for half in images
    )
    expected = before.poses + np.pad(shifts[:, None, :, None], ((0, 0), (0, 0), (0, 0), (2, 0)))
    same = [
      np.allclose(getattr(after, name), getattr(before, name), atol=1e-4)
      for name in ("presence", "features")
    ]
    follows[places] = [np.allclose(after.poses, expected, atol=1e-4), *same]
  assert follows == {"cells": [True] * 3, "free": [False] * 3}


def noise_of(**changes):
  """Compiled function of a key: noise on the presence logits of 200 images in training, [b, m], and
  in evaluation."""
  module, variables, bias = encoder_and_variables(**changes)
  image = jnp.zeros((200, 12, 12, 1))

  @compiled
  def presences(key):
    training = module.apply(variables, image, train=True, rngs={"noise": key}).presence
    return training, module.apply(variables, image, train=False).presence

  return lambda key: [logit(np.float64(x)) - bias[:, 6] for x in presences(key)]


def test_presence_noise_is_uniform_and_can_be_off_or_stay_on():
  noise_for = noise_of()
  noise, in_evaluation = noise_for(jax.random.key(3))
  assert np.abs(noise).max() < 2 + 1e-4  # rounding of a presence of 0.9
  # 600 draws: quartiles are known to 0.08, four times that is safe.
  np.testing.assert_allclose(np.quantile(noise, [0.25, 0.5, 0.75]), [-1, 0, 1], atol=0.3)
  assert np.unique(noise.round(5)).size > 500, "every part of every image has its own"
  assert np.abs(noise - noise_for(jax.random.key(4))[0]).max() > 1
  np.testing.assert_allclose(in_evaluation, 0, atol=1e-5)  # rounding of the sigmoid
  for noise in noise_of(presence_noise=0.0)(jax.random.key(3)):
    np.testing.assert_allclose(noise, 0, atol=1e-5)
  _, noise = noise_of(noise_in_evaluation=True)(jax.random.key(3))
  assert 1.5 < np.abs(noise).max() < 2 + 1e-4
  assert np.unique(noise.round(5)).size > 500


@pytest.mark.parametrize(
  ("bright", "nonlinearity", "shift"),
  [(False, "sigmoid", 0), (True, "sigmoid", 3), (True, "relu1", 0)],
)
def test_templates_start_as_rows_of_an_orthogonal_matrix_between_0_and_1(
  bright, nonlinearity, shift
):
  module, inputs = decoder_and_inputs(bright_start=bright, nonlinearity=nonlinearity)
  init = compiled(functools.partial(module.init, method=draw_with_features))
  params = jax.device_get(init(jax.random.key(0), *inputs[1:])["params"])
  np.testing.assert_array_equal(params["alphas"], 2 if bright else 0)
  rows = params["templates"].reshape(PARTS, -1).astype(np.float64) - shift
  np.testing.assert_allclose([rows.min(), rows.max()], [0, 1], atol=3e-7)  # rounding at 3
  # One scale s and one shift a make the rows orthonormal:
  # s^2 r_i.r_j + s a (sum r_i + sum r_j) + a^2 n = delta_ij, linear in the three products.
  sums, products = rows.sum(axis=1), rows @ rows.T
  sizes = np.full_like(products, rows.shape[1])
  design = np.stack([products, sums[:, None] + sums, sizes], axis=-1)
  solution, *_ = np.linalg.lstsq(design.reshape(-1, 3), np.eye(PARTS).ravel(), rcond=None)
  np.testing.assert_allclose(design @ solution, np.eye(PARTS), atol=1e-5)  # rows in float32
  np.testing.assert_allclose(solution[1] ** 2, solution[0] * solution[2], rtol=1e-3)


DECODERS = {
  "colour": (3, {}),
  "coupled": (1, {"mixing": "coupled"}),
  "coupled colour": (3, {"mixing": "coupled", "nonlinearity": "relu1"}),
  "ground colour": (3, {"ground_colour": True}),
  "coupled ground colour": (
    1,
    {"mixing": "coupled", "nonlinearity": "relu1", "ground_colour": True},
  ),
  "no colour": (2, {"colour": False, "nonlinearity": "relu1"}),
}


def draw_with_features(decoder, poses, presence, features):
  return decoder(poses, presence, decoder.colours(features), CANVAS)


def decoder_inputs():
  """Poses, presences and features of two images."""
  rng = np.random.RandomState(0)
  poses = jnp.asarray([[random_pose(rng) for _ in range(PARTS)] for _ in range(2)])
  presence = jnp.asarray([[0.9, 0.0, 0.4], [1.0, 0.3, 0.6]])
  return poses, presence, jnp.asarray(rng.normal(0, 1, (2, PARTS, 4)), jnp.float32)


@pytest.mark.parametrize("case", DECODERS)
def test_decoder_against_numpy(case):
  channels, changes = DECODERS[case]
  options = MODEL["part_decoder"] | changes | {"pixel_scale": 0.5}
  module = PartDecoder(num_parts=PARTS, channels=channels, **options)
  poses, presence, features = decoder_inputs()
  draw = nn.apply(draw_with_features, module)
  variables = random_variables(module, poses, presence, features, method=draw_with_features)
  params = variables["params"]
  params["templates"] = 3 * params["templates"]  # relu1 cuts at both ends
  assert ("alphas" in params) == (options["mixing"] == "alpha")
  assert ("colour_mlp" in params) == options["colour"]
  mixture = jax.device_get(compiled(draw)(variables, poses, presence, features))
  np.testing.assert_array_equal(mixture.scale, [0.5, 0.5])
  actual_colours = compiled(functools.partial(module.apply, method="colours"))(variables, features)
  for b in range(2):
    mean, log_mixing = reference_picture(
      params, np.asarray(poses[b]), np.asarray(presence[b]), features[b], options, CANVAS
    )
    # As warping, times logits over a temperature of 1.
    np.testing.assert_allclose(mixture.mean[b], mean, atol=2e-5)
    np.testing.assert_allclose(mixture.log_mixing[b], log_mixing, atol=5e-5)
    colours = reference_colours(params, np.asarray(features[b]), options, channels)
    np.testing.assert_allclose(actual_colours[b], colours, atol=1e-6)


def explain(decoder, poses, presence, features):
  """log p of a random image under the decoder's mixture."""
  image = jax.random.uniform(jax.random.key(0), (2, CANVAS, CANVAS, 3))
  inputs = (poses, presence, decoder.colours(features), image)
  return decoder.log_prob(*inputs, train=False)


def decoder_and_inputs(**options):
  """A decoder, and variables and arguments to draw with or to explain."""
  module = PartDecoder(num_parts=PARTS, channels=3, **MODEL["part_decoder"] | options)
  inputs = decoder_inputs()
  return module, (random_variables(module, *inputs, method=draw_with_features), *inputs)


@pytest.mark.parametrize("ground_colour", [False, True])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_every_backend_has_the_same_likelihood(monkeypatch, mixing, ground_colour):
  options = {"mixing": mixing, "ground_colour": ground_colour, "pixel_scale": 0.5}
  module, inputs = decoder_and_inputs(**options)
  by_example = compiled(nn.apply(explain, module))(*inputs)
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  by_definition = compiled(nn.apply(explain, module))(*inputs)
  np.testing.assert_allclose(by_example, by_definition, rtol=1e-6)


def test_one_template_draws_both_polarities():
  """Colours of ink and ground that change places draw the negative, also around the template."""
  module, (variables, poses, presence, _) = decoder_and_inputs(ground_colour=True)
  draw = compiled(functools.partial(module.apply, canvas=CANVAS))
  colours = jnp.asarray([[[0.9, 0.5, 0.2, 0.1, 0.3, 0.2]] * PARTS] * 2)
  exchanged = jnp.concatenate([colours[..., 3:], colours[..., :3]], axis=-1)
  means = [
    np.asarray(draw(variables, poses, presence, c).mean)[:, :-1] for c in (colours, exchanged)
  ]
  total = np.broadcast_to(np.asarray(colours[0, 0, :3] + colours[0, 0, 3:]), means[0].shape)
  np.testing.assert_allclose(means[0] + means[1], total, atol=1e-6)
  far = means[0][:, :, 0, 0]  # where templates do not reach
  assert np.isclose(far, colours[0, 0, 3:], atol=1e-6).all(axis=-1).any()


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("backend", ["cpu", "gpu", "tpu"])
def test_tpus_gather_and_scatter_nothing(monkeypatch, backend, mixing):
  """They warp by matrix products, in value and gradient."""
  module, inputs = decoder_and_inputs(mixing=mixing)
  monkeypatch.setattr(jax, "default_backend", lambda: backend)
  gradient = jax.grad(lambda *x: jnp.sum(nn.apply(draw_with_features, module)(*x).mean ** 2))
  picture = str(jax.make_jaxpr(gradient)(*inputs))
  assert {name in picture for name in (" gather[", " scatter-add[")} == {backend != "tpu"}
