"""Every ablation: what it changes in each config, what it takes away from a model, its name."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from flax.traverse_util import flatten_dict

import train as train_script
from configs import cifar10, digits, fashion_mnist, mnist, svhn
from scae_jax.models import ablations
from scae_jax.models.system import ImageSpec
from scae_jax.training.config import differences, parse_command_line, read_settings
from scae_jax.training.errors import RunError
from scae_jax.training.objective import scheduled_weights
from scae_jax.training.optimizers import make_optimizer
from scae_jax.training.state import initial_state
from scae_jax.training.step import update
from scae_jax.training.systems import check_system, make_system
from tests import runs
from tests.tiny import compiled

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS, OBJECTS, CANVAS, FEATURES, MAP = 3, 4, 12, 4, 5
DATA = ImageSpec(CANVAS, 1, 10)
SIZES = {key: size for key, size in runs.SIZES.items() if key.startswith("model.")}
SIZES |= {
  "model.num_parts": PARTS,
  "model.num_objects": OBJECTS,
  "model.part_encoder.num_features": FEATURES,
  "data.canvas": CANVAS,
}
BASES = [
  (digits, "modern"),
  (mnist, "official"),
  (mnist, "paper"),
  (mnist, "modern"),
  (fashion_mnist, "official"),
  (svhn, "paper"),
  (svhn, "alpha"),
  (cifar10, "paper"),
]
# Kosiorek et al. 2019, section 3.3, has most of them.
NAMES = (
  "no_posterior_sparsity",
  "no_prior_sparsity",
  "no_sparsity",
  "no_object_noise",
  "no_part_noise",
  "no_noise",
  "similarity_transforms",
  "no_deformations",
  "linear_part_encoder",
  "mean_pooled_part_encoder",
  "mlp_object_encoder",
  "no_special_features",
  "coupled_mixing",
)
# A step takes seconds to compile, so each ablation takes its step with others. The second set is
# the quicker one, and not slow: a quick run of the tests has a step under ablations too. What is
# left out, no_sparsity and no_noise, is two of the others each.
TOGETHER = (
  pytest.param(
    (
      "no_posterior_sparsity",
      "no_part_noise",
      "similarity_transforms",
      "no_deformations",
      "linear_part_encoder",
      "coupled_mixing",
    ),
    marks=pytest.mark.slow,
  ),
  (
    "no_prior_sparsity",
    "no_object_noise",
    "mean_pooled_part_encoder",
    "mlp_object_encoder",
    "no_special_features",
  ),
)


def test_the_menu_is_complete():
  assert tuple(ablations.MENU) == tuple(ablations.ABLATIONS) == NAMES


@pytest.mark.parametrize(("config", "preset"), BASES)
@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_named_keys_change(config, preset, name):
  base, named = config.get_config(preset), ablations.MENU[name][1]
  if name == "coupled_mixing" and config in (svhn, cifar10) and preset == "paper":
    with pytest.raises(ValueError, match="'coupled_mixing' changes nothing"):
      config.get_config(f"{preset},ablation={name}")
    return
  ablated = config.get_config(f"{preset},ablation={name}")
  before = flatten_dict(base.to_dict(), sep=".")
  expected = {key: (before[key], value) for key, value in named.items() if before[key] != value}
  assert expected
  assert differences(base, ablated) == expected
  # Of one name, the one key that may already be so is the width of the MLP.
  assert set(named) - set(expected) <= {"model.object_encoder.features"}


def made_small(names):
  """System and settings of a tiny digits model with some ablations."""
  config = digits.get_config()
  config.update_from_flattened_dict(SIZES)
  settings = read_settings(ablations.apply(config, names))
  return make_system(settings, DATA), settings


@functools.cache
def traced(name):
  """The system of one ablation (or none), and the shapes of its parameters."""
  system, settings = made_small((name,) if name else ())
  optimizer = make_optimizer(settings.optimizer)
  state = jax.eval_shape(lambda: initial_state(system, DATA, optimizer, seed=0))
  return system, state.params


@functools.cache
def trained(names):
  """Parameters before and after one step, and its metrics, with several ablations."""
  system, settings = made_small(names)
  check_system(system, DATA, settings.train.batch_size)  # also in evaluation
  optimizer = make_optimizer(settings.optimizer)
  image = np.random.RandomState(0).uniform(0, 1, (4, CANVAS, CANVAS, 1)).astype(np.float32)
  batch = {"image": jnp.asarray(image), "label": jnp.arange(4)}

  def step(key):
    state = initial_state(system, DATA, optimizer, seed=0)
    after, rows = update(system, optimizer, state, batch, key)
    return state.params, after.params, rows

  return jax.device_get(compiled(step)(jax.random.key(1)))


@pytest.mark.parametrize("names", TOGETHER, ids=" ".join)
def test_a_step_is_finite_and_moves_the_parameters(names):
  before, after, rows = trained(names)
  for path, leaf in jax.tree.leaves_with_path((after, rows)):
    assert np.isfinite(leaf).all(), jax.tree_util.keystr(path)
  moved = jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.any(a != b)), before, after))
  assert np.mean(moved) > 0.8  # all but a dummy vote, biases of keys and the like


PRIOR, POSTERIOR = (
  {"prior_within", "prior_between"},
  {"posterior_within", "posterior_between"},
)


@pytest.mark.parametrize(
  ("name", "off"),
  [
    ("no_posterior_sparsity", POSTERIOR),
    ("no_prior_sparsity", PRIOR),
    ("no_sparsity", PRIOR | POSTERIOR),
  ],
)
@pytest.mark.parametrize("step", [0, 5_000, 8_000, 20_000])
def test_what_is_off_stays_off_under_the_schedule(name, off, step):
  base, weights = (scheduled_weights(traced(n)[0], step) for n in ("", name))
  assert {term for term in weights if weights[term] == 0} == off
  assert all(weights[term] == base[term] for term in set(weights) - off)


@pytest.mark.parametrize(
  ("name", "part", "objects"),
  [
    ("", 4.0, 4.0),
    ("no_part_noise", 0.0, 4.0),
    ("no_object_noise", 4.0, 0.0),
    ("no_noise", 0.0, 0.0),
  ],
)
def test_noise(name, part, objects):
  module = traced(name)[0].module
  assert module.part_encoder.presence_noise == part
  assert module.object_decoder.presence_noise == objects


@pytest.mark.parametrize(("name", "expected"), [("", False), ("similarity_transforms", True)])
def test_similarities(name, expected):
  module = traced(name)[0].module
  assert module.part_encoder.similarity == module.object_decoder.similarity == expected


def test_no_deformations():
  # Viewer, presence, vote presence and scale are left of the decoder's outputs.
  for name, size in {"no_deformations": 0, "": PARTS * 6}.items():
    last = traced(name)[1]["object_decoder"]["outputs"]["capsules"]["dense_1"]["kernel"]
    assert last.shape == (OBJECTS, 8, 6 + 1 + 2 * PARTS + size)


@pytest.mark.parametrize(
  ("name", "layer", "shape"),
  [
    ("", "conv_1x1", (6, PARTS * (7 + FEATURES + 1))),  # and the attention logit
    ("mean_pooled_part_encoder", "conv_1x1", (6, PARTS * (7 + FEATURES))),
    ("linear_part_encoder", "linear", (MAP * MAP * 6, PARTS * (7 + FEATURES))),
  ],
)
def test_part_encoders(name, layer, shape):
  pooling = traced(name)[1]["part_encoder"]["pooling"]
  assert set(pooling) == {layer}
  assert pooling[layer]["kernel"].shape == shape


def test_mlp_of_objects():
  encoder = traced("mlp_object_encoder")[1]["object_encoder"]
  assert set(encoder) == {"mlp"}
  row = 6 + 1 + FEATURES + 5 * 5  # pose, absence, special features, template
  assert encoder["mlp"]["dense_0"]["kernel"].shape == (PARTS * row, OBJECTS * 16)


def test_special_features_are_gone_wherever_they_were_read():
  system, params = traced("no_special_features")
  assert system.module.part_encoder.num_features == 0
  assert "colour_mlp" in traced("")[1]["part_decoder"]
  assert "colour_mlp" not in params["part_decoder"]
  # Of a part, pose and presence are left of the pooled numbers, and attention's logit.
  assert params["part_encoder"]["pooling"]["conv_1x1"]["kernel"].shape == (6, PARTS * 8)
  rows = params["object_encoder"]["set_transformer"]["input"]["kernel"]
  assert rows.shape == (6 + 1 + 5 * 5, 8)


def test_coupled_mixing():
  assert "alphas" in traced("")[1]["part_decoder"]
  decoder = traced("coupled_mixing")[1]["part_decoder"]
  assert "alphas" not in decoder
  assert "temperature" in decoder


@pytest.mark.parametrize(
  ("preset", "expected"),
  [
    ("", ("", ())),
    ("paper", ("paper", ())),
    ("paper,ablation=a", ("paper", ("a",))),
    ("ablation=a+b", ("", ("a", "b"))),
    ("paper,ablation=a,ablation=b+c", ("paper", ("a", "b", "c"))),
  ],
)
def test_presets_are_split(preset, expected):
  assert ablations.split(preset) == expected


@pytest.mark.parametrize("config", [digits, mnist, fashion_mnist, svhn, cifar10])
@pytest.mark.parametrize(
  ("preset", "message"),
  [
    ("ablation=no_nois", r"no ablation 'no_nois'; expected one of\n  no_posterior_sp(.|\n)*coupl"),
    ("ablation=", r"cannot read 'ablation=' of the preset 'ablation='; expected \[PRESET\]"),
    ("ablate=no_noise", r"cannot read 'ablate=no_noise'"),
    (",no_noise", r"cannot read 'no_noise'"),
    ("ablation=no_noise+", r"no ablation ''"),
    ("ablation=no_noise+no_noise", r"'no_noise' changes nothing: this config has"),
    ("ablation=no_sparsity+no_prior_sparsity", r"'no_prior_sparsity' changes nothing"),
    (
      "ablation=linear_part_encoder+mean_pooled_part_encoder",
      r"'mean_pooled_part_encoder' and another one .* of model.part_encoder.pooling",
    ),
  ],
)
def test_what_cannot_be_ablated(config, preset, message):
  with pytest.raises(ValueError, match=message):
    config.get_config(preset)


def test_two_ablations_at_once():
  both = digits.get_config("ablation=no_noise+no_deformations")
  assert both.to_dict() == digits.get_config("modern,ablation=no_deformations+no_noise").to_dict()
  assert set(differences(digits.get_config(), both)) == {
    "model.part_encoder.presence_noise",
    "model.object_decoder.presence_noise",
    "model.object_decoder.deformations",
  }


@pytest.mark.parametrize(
  ("source", "folder"),
  [
    ("mnist.py:official,ablation=no_noise", "mnist-official-no_noise"),
    ("digits.py:ablation=no_noise+no_deformations", "digits-no_noise-no_deformations"),
    ("digits.py", "digits"),
    ("svhn.py:alpha", "svhn-alpha"),
  ],
)
def test_default_workdir(source, folder):
  command = parse_command_line([f"--config={ROOT / 'configs' / source}"], default_config="")
  assert command.workdir == pathlib.Path("runs") / folder
  assert dict(command.ablations) == ablations.ABLATIONS


def test_help_lists_them_and_an_unknown_one_is_refused(capsys):
  try:
    train_script.main(["--help", f"--config={ROOT}/configs/mnist.py:paper"])
  finally:
    logging.get_absl_logger().removeFilter(train_script.is_not_orbax)
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  for name, sentence in ablations.ABLATIONS.items():
    assert [name, *sentence.split()] in lines
  source = f"--config={ROOT / 'configs' / 'mnist.py'}:official,ablation=typo"
  with pytest.raises(RunError, match=r"no ablation 'typo'; expected one of\n  no_posterior"):
    parse_command_line([source], default_config="")


def test_a_config_without_ablations_says_so():
  source = f"{ROOT / 'configs' / 'cnn.py'}:ablation=no_noise"
  with pytest.raises(RunError, match=r"no preset 'ablation=no_noise'.*cnn\.py has no ablations\)"):
    parse_command_line([f"--config={source}"], default_config="")
