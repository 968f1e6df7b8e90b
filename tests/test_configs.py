"""Every preset of every config builds, has weights for its losses, and its published size."""

import functools
import importlib
import pathlib

import jax
import jax.numpy as jnp
import pytest

from configs import (
  capsnet,
  cnn,
  constellations,
  fashion_mnist,
  matrix_capsules,
  mnist,
  probabilistic,
  svhn,
)
from scae_jax.config import differences, read_settings
from scae_jax.models.system import ImageSpec, PointSpec

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
# Those of another file.
PRESETS = {"cifar10": svhn.PRESETS, "fashion_mnist": mnist.PRESETS}
CHANNELS = {"svhn_cropped": 3, "cifar10": 3, "smallnorb": 2}
# They build what another preset does.
ALIKE = {
  *(("fashion_mnist", preset) for preset in mnist.PRESETS),
  *(("mnist", preset) for preset in ("quick", "quick_views", "views_40")),
  ("matrix_capsules", "mnist"),
  ("matrix_capsules", "mnist_small"),
  ("probabilistic", "mnist_variational"),
  ("probabilistic", "recovery_annealed"),
}
ALL = [
  (name, preset)
  for name in NAMES
  for preset in PRESETS.get(name) or importlib.import_module(f"configs.{name}").PRESETS
  if (name, preset) not in ALIKE
]


def config_of(name, preset):
  return importlib.import_module(f"configs.{name}").get_config(preset)


@functools.cache
def traced(name, preset):
  """Shapes of parameters and loss terms, and the weights; nothing is computed."""
  config = config_of(name, preset)
  sections = config.to_dict()
  if config.system == "ccae":
    spec = PointSpec(11, 3, 4)
  else:
    data = sections["data"]
    channels = CHANNELS.get(data["name"], 1)
    classes = 5 if data["name"] == "smallnorb" else 10
    spec = ImageSpec(
      data["canvas"],
      channels,
      classes,
      1 + data["overlay"],
      normalized=data["normalize"],
      two_views=data["two_views"],
    )
  make_system = importlib.import_module(f"scae_jax.models.{config.system}").make_system
  system = make_system(sections["model"], sections["loss"], spec)

  def start(key):
    batch = spec.blank_batch(2)
    keys = dict(zip(("params", "noise"), jax.random.split(key), strict=True))
    output, variables = system.module.init_with_output(keys, batch, train=True)
    return system.loss_terms(output, batch, 0), variables

  terms, variables = jax.eval_shape(start, jax.random.key(0))
  return terms, variables, system.loss_weights


@pytest.mark.parametrize(("name", "preset"), ALL)
def test_preset_builds_and_every_loss_term_has_a_weight(name, preset):
  terms, variables, weights = traced(name, preset)
  assert set(terms) == set(weights)
  assert all(term.shape == () and term.dtype == jnp.float32 for term in terms.values())
  assert set(variables) == {"params"}
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))


# Not published: of cifar10's views, matrix_capsules' digits, cnn's small and baseline.
COUNTS = {
  "mnist": {"official": 3_540_823, "paper": 2_420_351},
  "svhn": {"alpha": 2_384_777},  # not those of `paper`: see configs/svhn.py
  "cifar10": {"alpha": 4_570_201, "views": 1_496_857},
  "cnn": {"lenet5": 44_426, "small": 554_883, "baseline": 35_445_522},
  "capsnet": {"paper": 8_215_568, "multi_mnist": 11_361_808},
  # Two cameras and five classes.
  "matrix_capsules": {"smallnorb": 316_650, "smallnorb_small": 68_618, "digits": 67_284},
}


@pytest.mark.parametrize("name", COUNTS)
def test_published_number_of_parameters(name):
  for preset, expected in COUNTS[name].items():
    _, variables, _ = traced(name, preset)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == expected, preset


def test_full_posterior_has_the_parameters_of_the_likeliest_poses():
  """What it starts from must fit; deviations and their terms are new."""
  (terms, delta, _), (more_terms, gaussian, _) = (
    traced("probabilistic", preset) for preset in ("digits", "digits_variational")
  )
  delta, gaussian = (
    {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(variables)}
    for variables in (delta, gaussian)
  )
  assert delta.items() <= gaussian.items()
  assert set(gaussian) > set(delta)
  assert all("['scales']" in name for name in set(gaussian) - set(delta))
  assert set(more_terms) - set(terms) == {"poses_1", "poses_2"}


@pytest.mark.parametrize(
  ("before", "after", "changed"),
  [
    ("digits", "digits_variational", "poses"),
    ("mnist", "mnist_variational", "poses"),
    ("recovery", "recovery_annealed", "generative.upper_temperature"),
  ],
)
def test_continuing_presets_start_from_the_workdir_of_the_first(before, after, changed):
  configs = [probabilistic.get_config(preset) for preset in (before, after)]
  different_keys = [key for key in differences(*configs) if key.startswith("model.")]
  assert different_keys == [f"model.{changed}"]
  assert configs[1].train.start_from == f"runs/probabilistic-{before}"  # where train.py puts it


def test_published_settings_of_capsnet():
  """Sabour, Frosst and Hinton 2017; sizes of layers are seen in the number of parameters."""
  config = capsnet.get_config("paper")
  assert config.model.routing_iterations == 3
  loss = config.loss
  assert (loss.present_margin, loss.absent_margin, loss.absent_weight) == (0.9, 0.1, 0.5)
  assert loss.weights.to_dict() == {"margin": 1.0, "reconstruction": 0.0005}
  assert (config.train.batch_size, config.data.max_shift) == (128, 2)
  optimizer = config.optimizer
  assert (optimizer.name, optimizer.schedule) == ("adam", "exponential")
  assert optimizer.learning_rate == 1e-3
  # Sections 5 to 7: affNIST's canvas, two digits in 36x36 pixels, patches of 24x24.
  affine, pairs, patches = map(capsnet.get_config, ("expanded", "multi_mnist", "cifar10"))
  assert (affine.data.canvas, affine.data.max_shift) == (40, 6)
  assert (pairs.data.canvas, pairs.data.max_shift, pairs.data.overlay) == (36, 4, True)
  assert (patches.data.canvas, patches.data.crop, patches.data.max_shift) == (24, 24, 0)
  assert (patches.data.name, patches.model.primary_types) == ("cifar10", 64)


def test_published_settings_of_convolutional_networks():
  """Sabour, Frosst and Hinton 2017, section 5; batch and decay are those of CapsNet."""
  config, paper = cnn.get_config("baseline"), capsnet.get_config("paper")
  assert config.model.dropout == 0.5
  assert config.optimizer.to_dict() == paper.optimizer.to_dict()
  assert config.data.to_dict() == paper.data.to_dict()
  assert config.train.batch_size == paper.train.batch_size


def test_published_settings_of_matrix_capsules():
  """Hinton, Sabour and Frosst 2018, and what its authors say of learning rate and margin."""
  config = matrix_capsules.get_config("smallnorb")
  model, data, optimizer = config.model, config.data, config.optimizer
  assert (model.routing_iterations, model.inverse_temperature_limit) == (3, 0.01)
  assert model.add_coordinates
  assert not model.normalize_poses
  assert config.loss.margin_scale == 20_000.0
  assert (data.name, data.canvas, data.crop, data.max_shift) == ("smallnorb", 32, 32, 0)
  assert (data.brightness, data.contrast, data.max_rotation) == (0.125, 0.5, 0.0)
  assert (config.train.num_steps, config.train.batch_size) == (300_000, 64)
  assert (optimizer.name, optimizer.schedule) == ("adam", "exponential")
  rates = (optimizer.learning_rate, optimizer.decay_steps, optimizer.decay_rate)
  assert rates == (3e-3, 20_000, 0.96)


def test_published_settings():
  """Kosiorek et al. 2019, and the authors' release."""
  official, paper = mnist.get_config("official"), mnist.get_config("paper")
  for config in (official, paper):
    assert (config.data.name, config.data.canvas, config.data.max_shift) == ("mnist", 40, 6)
    assert (config.train.num_steps, config.train.batch_size) == (300_000, 128)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.decay) == ("rmsprop", 0.9, 0.9)
    assert optimizer.learning_rate == 3e-5
    assert read_settings(config).optimizer.epsilon == (10 * 128) ** -2.0
    assert config.model.part_encoder.presence_noise == 4.0
    assert config.model.part_decoder.pixel_scale == 1.0
    assert config.loss.weights.dynamic == 10.0
    assert config.loss.weights.image == config.loss.weights.parts == 1.0
    assert (config.loss.prior, config.loss.posterior) == ("l2", "entropy")
  names = ("posterior_within", "posterior_between", "prior_within", "prior_between")
  assert [official.loss.weights[name] for name in names] == [0.7, 0.2, 2.0, 0.35]
  assert [paper.loss.weights[name] for name in names] == [10.0, 10.0, 1.0, 1.0]
  assert official.optimizer.schedule == "constant"
  assert (paper.optimizer.schedule, paper.optimizer.decay_rate) == ("exponential", 0.96)
  assert paper.optimizer.decay_steps == 10_000
  # The quirks of the release are the official preset's alone.
  for config, quirky in ((official, True), (paper, False)):
    assert config.model.normalize_mixing != quirky
    assert config.model.part_encoder.noise_in_evaluation == quirky
    assert config.model.object_decoder.noise_in_evaluation == quirky
    assert (config.model.object_encoder.mask == "hard") == quirky
    assert config.model.object_encoder.norm_epsilon == (1e-5 if quirky else 1e-6)


def test_published_settings_of_constellations():
  """Kosiorek et al. 2019, of constellations."""
  config = constellations.get_config("paper")
  data = config.data
  assert data.patterns == ("square", "triangle", "square")
  assert (data.presence_prob, data.max_rotation, data.jitter) == (0.5, 90.0, 0.0)
  assert (data.min_scale, data.max_scale, data.field) == (1.0, 4.0, 24.0)
  assert (config.model.num_objects, config.model.num_votes) == (3, 4)
  encoder = config.model.object_encoder
  assert (encoder.num_layers, encoder.num_heads, encoder.features) == (4, 4, 128)
  assert encoder.output_features == 32
  assert config.model.object_decoder.similarity
  assert config.model.object_decoder.learn_vote_scale
  assert (config.optimizer.learning_rate, config.train.batch_size) == (1e-4, 32)
  weights = config.loss.weights
  assert (weights.points, weights.presence, weights.dynamic) == (1.0, 10.0, 10.0)
  assert weights.prior_within == weights.prior_between == 1.0
  assert weights.posterior_within == weights.posterior_between == 0.0


@pytest.mark.parametrize("name", ["digits", "mnist", "svhn", "cifar10"])
def test_modern_cosine_ends_with_the_run_however_long(name):
  config = config_of(name, "modern")
  assert config.optimizer.schedule == "cosine"
  assert read_settings(config).optimizer.decay_steps == config.train.num_steps
  config.train.num_steps = 20
  assert read_settings(config).optimizer.decay_steps == 20


def test_fashion_mnist_differs_from_mnist_in_the_data_alone():
  for preset in mnist.PRESETS:
    before, after = mnist.get_config(preset), fashion_mnist.get_config(preset)
    expected = {"data.name": ("mnist", "fashion_mnist")}
    if start := before.train.start_from:
      expected["train.start_from"] = (start, f"runs/fashion_{start.removeprefix('runs/')}")
    assert differences(before, after) == expected


@pytest.mark.parametrize(("name", "parts", "objects"), [("svhn", 24, 32), ("cifar10", 32, 64)])
def test_settings_in_colour(name, parts, objects):
  """Kosiorek et al. 2019; encoders are seen in the number of parameters of `alpha`."""
  paper = config_of(name, "")
  assert differences(paper, config_of(name, "alpha")) == {
    "model.part_decoder.mixing": ("coupled", "alpha")
  }
  model, data = paper.model, paper.data
  assert (data.name.partition("_")[0], data.canvas, data.max_shift) == (name, 32, 0)
  assert (model.num_parts, model.num_objects, model.target) == (parts, objects, "sobel")
  assert (model.part_encoder.strides, model.object_encoder.num_heads) == ((1, 1, 2, 2), 2)
  assert (model.part_decoder.template_size, paper.optimizer.learning_rate) == (14, 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_preset(name):
  with pytest.raises(ValueError, match=r"'offical'.*(modern|paper|digits)"):
    config_of(name, "offical")
