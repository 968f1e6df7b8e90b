"""Every option of the SCAE in a whole model: values and gradients."""

import jax
import numpy as np
import pytest
from scipy.special import expit

from scae_jax.math import filters
from tests.references import reference_picture, reference_routing
from tests.tiny import (
  BATCH,
  CANVAS,
  LOSS,
  MODEL,
  OBJECTS,
  PARTS,
  assert_flows,
  changed,
  compiled,
  random_variables,
  sweeper,
  tiny_batch,
  tiny_system,
)

# Two models that share no option with each other or with the published one.
SOFT = {
  "target": "sobel",
  "stop_gradients": "all",
  "reconstruction_vote": "soft",
  "reconstruction_presence": "soft",
  "normalize_mixing": True,
  "part_encoder.pooling": "mean",
  "part_encoder.similarity": True,
  "part_decoder.nonlinearity": "relu1",
  "part_decoder.mixing": "coupled",
  "object_encoder.kind": "mlp",
  "object_decoder.similarity": True,
  "object_decoder.deformations": False,
  "object_decoder.learn_vote_scale": False,
}
HARD = {
  "reconstruction_vote": "hard",
  "part_encoder.pooling": "linear",
  "part_encoder.num_features": 0,
  "part_encoder.noise_in_evaluation": True,
  "part_decoder.colour": False,
  "part_decoder.pixel_scale": 0.3,
  "object_encoder.mask": "hard",
  "object_encoder.num_heads": 2,
  "object_decoder.noise_in_evaluation": True,
}


def run(changes, loss, channels):
  system, batch = tiny_system(channels, LOSS | loss, **changes), tiny_batch(channels)
  variables = random_variables(system.module, batch, train=False)
  if "colour_mlp" in (decoder := variables["params"]["part_decoder"]):
    # Colours of about 0.5, where relu1 does not cut.
    decoder["colour_mlp"]["dense_1"]["bias"] -= 0.5
  return *sweeper(system, batch)(variables), jax.device_get(variables["params"])


@pytest.fixture(scope="module")
def soft():
  return run(SOFT, {"prior": "kl"}, channels=3)


@pytest.fixture(scope="module")
def hard():
  return run(HARD, {"prior_within_constant": 4.3, "posterior": "kl"}, channels=1)


def test_gradients_with_soft_votes(soft):
  """The image's term trains the objects and, by colours, special features.

  Part poses, presences and features are constants for the object half.
  """
  objects = {"object_encoder", "object_decoder"}
  drawn = objects | {"convnet", "features", "dummy_vote", "templates", "temperature", "colour"}
  drawn |= {"background"}
  assert_flows(soft[0], image=drawn, objects=objects, dynamic=set())


def test_gradients_without_special_features(hard):
  """No gradient goes from the objects to the part encoder."""
  objects = {"object_encoder", "object_decoder"}
  drawn = objects | {"convnet", "presence", "templates", "alphas", "background"}
  assert_flows(hard[0], image=drawn, objects=objects, dynamic=objects, num_features=0)


def test_sobel_target(soft):
  """The input is the image, the target its edges; their mathematics: test_math_images.py."""
  edges = jax.jit(jax.vmap(filters.normalized_sobel))(tiny_batch(3)["image"])
  np.testing.assert_allclose(soft[2].reconstruction.target, edges, atol=5e-6)  # another program


def test_mixing_is_normalised_on_request(soft):
  """As published, it is not normalised: test_models_scae.py."""
  output, objects = soft[2], soft[2].objects
  for b in range(BATCH):
    votes = objects.votes[b], objects.vote_scale[b], objects.vote_presence[b]
    poses = output.parts.poses[b].reshape(PARTS, 6)
    log_prob, _ = reference_routing(poses, *votes, normalize_mixing=True)
    np.testing.assert_allclose(output.routing.log_prob[b], log_prob, rtol=1e-4, atol=1e-4)


def drawn(case, poses, presence, changes):
  """Pictures by NumPy against those of the model, for poses [b, m, 6] and presences [b, m]."""
  _, _, output, params = case
  options, mixture = changed(MODEL, changes)["part_decoder"], output.reconstruction.mixture
  for b in range(BATCH):
    part = poses[b].reshape(PARTS, 2, 3), presence[b], output.parts.features[b]
    mean, log_mixing = reference_picture(params["part_decoder"], *part, options, CANVAS)
    # Votes are known to 1e-6 and have scales down to 0.05: positions to 1e-4 of a pixel.
    np.testing.assert_allclose(mixture.mean[b], mean, atol=1e-3)
    np.testing.assert_allclose(mixture.log_mixing[b], log_mixing, atol=3e-3)


def test_reconstruction_from_soft_votes(soft):
  _, _, output, params = soft
  posterior, objects = output.routing.posterior, output.objects
  poses = np.einsum("bkm,bkmd->bmd", posterior[:, :-1], objects.votes)
  poses += posterior[:, -1, :, None] * params["dummy_vote"]
  presence = np.einsum("bkm,bkm->bm", posterior[:, :-1], objects.vote_presence)
  drawn(soft, poses, presence, SOFT)


def test_reconstruction_from_hard_votes(hard):
  """Poses are the winners' votes, presences those of the part encoder."""
  output = hard[2]
  winner = output.routing.posterior[:, :-1].argmax(axis=1)
  poses = np.take_along_axis(output.objects.votes, winner[:, None, :, None], axis=1)[:, 0]
  drawn(hard, poses, output.parts.presence, HARD)


@pytest.fixture(scope="module")
def pictures(hard):
  """Pictures of a model whose parts, where they are drawn, hide the background."""
  params = dict(hard[3])
  decoder = params["part_decoder"] = dict(params["part_decoder"])
  decoder["alphas"] = decoder["alphas"] + 4
  decoder["background_logit"] = decoder["background_logit"] - 4
  draw = compiled(tiny_system(**HARD).pictures)
  return jax.device_get(draw({"params": params}, tiny_batch())), decoder


def assert_shows(picture, decoder, poses, presence, features):
  """The mode of the NumPy mixture, at pixels where rounding does not choose the winner."""
  options = MODEL["part_decoder"] | {"colour": False}
  mean, log_mixing = reference_picture(decoder, poses, presence, features, options, CANVAS)
  first, second = np.sort(log_mixing, axis=0)[[-1, -2]]
  clear = first - second > 1e-2
  assert clear.mean() > 0.5
  mode = np.take_along_axis(mean, log_mixing.argmax(axis=0)[None, ..., None], axis=0)[0]
  # Votes have scales down to 0.05: positions are known to 1e-4 of a pixel.
  np.testing.assert_allclose(picture[clear], mode[clear], atol=1e-3)


def test_pictures_of_objects(hard, pictures):
  """Reconstructions from the winners' votes, and of each object from the parts that it won."""
  (drawn, decoder), output = pictures, hard[2]
  objects, winner = output.objects, output.routing.winner
  alone = drawn["object_reconstructions"]["object_reconstruction"]
  assert alone.shape == (BATCH, OBJECTS, CANVAS, CANVAS, 1)
  for b in range(BATCH):
    parts = jax.tree.map(lambda array, b=b: array[b], output.parts)
    features, bottom_up = parts.features, drawn["reconstructions"]["bottom_up"][b]
    assert_shows(bottom_up, decoder, parts.poses, parts.presence, features)
    winning_vote = (winner[b], np.arange(PARTS))
    poses, presence = (
      objects.votes[b][winning_vote].reshape(PARTS, 2, 3),
      objects.vote_presence[b][winning_vote],
    )
    assert_shows(drawn["reconstructions"]["top_down"][b], decoder, poses, presence, features)
    for k in range(OBJECTS):
      poses, presence = objects.votes[b, k].reshape(PARTS, 2, 3), objects.vote_presence[b, k]
      assert_shows(alone[b, k], decoder, poses, presence * (winner[b] == k), features)
      # One that has won nothing draws the background; what is won may be outside the canvas.
      assert k in winner[b] or np.ptp(alone[b, k]) < 1e-6  # rounding of one grey
  for figure in ("reconstructions", "object_reconstructions"):
    np.testing.assert_array_equal(drawn[figure]["image"], tiny_batch()["image"])
    # Another compilation of the same numbers.
    np.testing.assert_allclose(drawn[figure]["object_presence"], objects.presence, atol=1e-5)
  owner = drawn["reconstructions"]["part_winner"]  # the dummy too may own a part
  np.testing.assert_array_equal(owner, np.argmax(output.routing.posterior, axis=1))
  assert set(np.unique(owner == winner)) == {False, True}


def test_pictures_of_templates_and_mixing(pictures):
  drawn, decoder = pictures
  for name in ("templates", "alphas"):
    np.testing.assert_allclose(drawn["templates"][name], expit(decoder[name]), atol=1e-6)
  # Probabilities of parts, dimmed where the picture is dark; the background has the rest.
  mixing = drawn["reconstructions"]["part_mixing"]
  brightness = drawn["reconstructions"]["bottom_up"].max(axis=-1)
  assert mixing.shape == (BATCH, PARTS, CANVAS, CANVAS)
  assert mixing.min() >= 0
  assert (mixing.sum(axis=1) <= brightness + 1e-6).all()
  assert (mixing.sum(axis=1) > 0.9 * brightness).any()


def test_pictures_of_turned_images(pictures):
  """Parts as the model sees them; how images are turned: test_models_generative_pictures.py."""
  drawn, _ = pictures
  fed, expected = drawn["part_identity"], drawn["reconstructions"]["part_mixing"]
  upright = np.flatnonzero(fed["degrees"] == 0)[0]
  # Another compilation of the same numbers: five layers and a warp, rounded in another order.
  np.testing.assert_allclose(fed["part_mixing"][:, upright], expected, atol=1e-4)
  assert np.abs(fed["part_mixing"] - expected[:, None]).max() > 0.01  # turned, parts differ
