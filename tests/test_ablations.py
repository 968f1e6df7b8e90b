"""Every ablation: what it changes in each config, what it takes away from a model, its name."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

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
from tests.conftest import ROOT
from tests.tiny import compiled

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
  (fashion_mnist, "paper"),
  (svhn, "paper"),
  (svhn, "alpha"),
  (cifar10, "paper"),
]
# A step takes seconds to compile, so these take theirs together. Gradients under the options of all
# ablations: test_models_options.py.
TOGETHER = (
  "no_prior_sparsity",
  "no_object_noise",
  "mean_pooled_part_encoder",
  "mlp_object_encoder",
  "no_special_features",
)


@pytest.mark.parametrize(("config", "preset"), BASES)
def test_exactly_the_named_keys_change(config, preset):
  base = config.get_config(preset)
  before = flatten_dict(base.to_dict(), sep=".")
  for name, (_, named) in ablations.MENU.items():
    source = f"{preset},ablation={name}"
    if name == "coupled_mixing" and base.model.part_decoder.mixing == "coupled":
      with pytest.raises(ValueError, match="'coupled_mixing' changes nothing"):
        config.get_config(source)
      continue
    expected = {key: (before[key], value) for key, value in named.items() if before[key] != value}
    assert expected, name
    assert differences(base, config.get_config(source)) == expected
    # Of one name, the one key that may already be so is the width of the MLP.
    assert set(named) - set(expected) <= {"model.object_encoder.features"}


def made_small(names):
  """System and settings of a tiny digits model with some ablations."""
  config = digits.get_config()
  config.update_from_flattened_dict(SIZES)
  settings = read_settings(ablations.apply(config, names))
  return make_system(settings, DATA), settings


@functools.cache
def system_of(name):
  """The system of one ablation, or of none."""
  return made_small((name,) if name else ())[0]


def test_a_step_is_finite_and_moves_the_parameters():
  system, settings = made_small(TOGETHER)
  check_system(system, DATA, settings.train.batch_size)  # also in evaluation
  optimizer = make_optimizer(settings.optimizer)
  image = np.random.RandomState(0).uniform(0, 1, (4, CANVAS, CANVAS, 1)).astype(np.float32)
  batch = {"image": jnp.asarray(image), "label": jnp.arange(4)}

  def step(key):
    state = initial_state(system, DATA, optimizer, seed=0)
    after, rows = update(system, optimizer, state, batch, key)
    return state.params, after.params, rows

  before, after, rows = jax.device_get(compiled(step)(jax.random.key(1)))
  for path, leaf in jax.tree.leaves_with_path((after, rows)):
    assert np.isfinite(leaf).all(), jax.tree_util.keystr(path)
  moved = jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.any(a != b)), before, after))
  assert np.mean(moved) > 0.8  # all but a dummy vote, biases of keys and the like


PRIOR, POSTERIOR = ({"prior_within", "prior_between"}, {"posterior_within", "posterior_between"})


SPARSITY = {
  "no_posterior_sparsity": POSTERIOR,
  "no_prior_sparsity": PRIOR,
  "no_sparsity": PRIOR | POSTERIOR,
}


@pytest.mark.parametrize("name", SPARSITY)
def test_what_is_off_stays_off_under_the_schedule(name):
  off = SPARSITY[name]
  for step in (0, 5_000, 8_000, 20_000):
    base, weights = (scheduled_weights(system_of(n), step) for n in ("", name))
    assert {term for term in weights if weights[term] == 0} == off
    assert all(weights[term] == base[term] for term in set(weights) - off)


# What an ablated model has and the whole one has not; what that does: test_models_*.py.
EFFECTS = {
  "no_part_noise": lambda m: m.part_encoder.presence_noise == 0 < m.object_decoder.presence_noise,
  "no_object_noise": lambda m: m.object_decoder.presence_noise == 0 < m.part_encoder.presence_noise,
  "no_noise": lambda m: m.object_decoder.presence_noise == m.part_encoder.presence_noise == 0,
  "similarity_transforms": lambda m: m.part_encoder.similarity and m.object_decoder.similarity,
  "no_deformations": lambda m: not m.object_decoder.deformations,
  "linear_part_encoder": lambda m: m.part_encoder.pooling == "linear",
  "mean_pooled_part_encoder": lambda m: m.part_encoder.pooling == "mean",
  "mlp_object_encoder": lambda m: (m.object_encoder.kind, m.object_encoder.features) == ("mlp", 16),
  "no_special_features": lambda m: not (m.part_encoder.num_features or m.part_decoder.colour),
  "coupled_mixing": lambda m: m.part_decoder.mixing == "coupled",
}


def test_the_menu_is_complete():
  assert set(ablations.MENU) == {*SPARSITY, *EFFECTS}


@pytest.mark.parametrize("name", EFFECTS)
def test_effects_on_the_model(name):
  assert EFFECTS[name](system_of(name).module)
  assert not EFFECTS[name](system_of("").module)


@pytest.mark.parametrize(
  ("preset", "expected"),
  [
    ("paper", ("paper", ())),
    ("ablation=a+b", ("", ("a", "b"))),
    ("paper,ablation=a,ablation=b+c", ("paper", ("a", "b", "c"))),
  ],
)
def test_presets_are_split(preset, expected):
  assert ablations.split(preset) == expected


@pytest.mark.parametrize(
  ("preset", "message"),
  [
    ("ablation=", r"cannot read 'ablation=' of the preset 'ablation='; expected \[PRESET\]"),
    ("ablate=no_noise", r"cannot read 'ablate=no_noise'"),
    ("ablation=no_nois", r"no ablation 'no_nois'; expected one of\n  no_posterior"),
    ("ablation=no_noise+", r"no ablation ''"),
    ("ablation=no_sparsity+no_prior_sparsity", r"'no_prior_sparsity' changes nothing"),
    (
      "ablation=linear_part_encoder+mean_pooled_part_encoder",
      r"'mean_pooled_part_encoder' and another one .* of model.part_encoder.pooling",
    ),
  ],
)
def test_what_cannot_be_ablated(preset, message):
  with pytest.raises(ValueError, match=message):
    digits.get_config(preset)


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
  ],
)
def test_default_workdir(source, folder):
  command = parse_command_line([f"--config={ROOT / 'configs' / source}"], default_config="")
  assert command.workdir == pathlib.Path("runs") / folder


def test_help_lists_them(capsys):
  runs.train_py("--help", f"--config={ROOT}/configs/mnist.py:paper")
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  for name, sentence in ablations.ABLATIONS.items():
    assert [name, *sentence.split()] in lines


def test_a_config_without_ablations_says_so():
  source = f"{ROOT / 'configs' / 'cnn.py'}:ablation=no_noise"
  with pytest.raises(RunError, match=r"no preset 'ablation=no_noise'.*cnn\.py has no ablations\)"):
    parse_command_line([f"--config={source}"], default_config="")
