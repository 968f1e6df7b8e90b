"""Every ablation: the keys that it changes, its effect on the model, and its name."""

import functools
import pathlib

import pytest
from flax.traverse_util import flatten_dict

from configs import cifar10, digits, fashion_mnist, mnist, svhn
from scae_jax.config import differences, parse_command_line, read_settings
from scae_jax.errors import RunError
from scae_jax.models import ablations
from scae_jax.models.system import ImageSpec
from scae_jax.training.build import build, make_system
from scae_jax.training.step import scheduled_weights
from tests import runs
from tests.conftest import ROOT

DATA = ImageSpec(runs.SIZES["data.canvas"], 1, 10)
BASES = [
  (digits, "modern"),
  (mnist, "quick"),
  (mnist, "official"),
  (mnist, "paper"),
  (fashion_mnist, "paper"),
  (svhn, "paper"),
  (svhn, "alpha"),
  (cifar10, "paper"),
]


@pytest.mark.parametrize(("config", "preset"), BASES)
def test_exactly_the_named_keys_change(config, preset):
  base = config.get_config(preset)
  before = flatten_dict(base.to_dict(), sep=".")
  for name, (_, named) in ablations.MENU.items():
    source = f"{preset},ablation={name}"
    if name == "coupled_mixing" and base.model.part_decoder.mixing == "coupled":
      with pytest.raises(ValueError, match="'coupled_mixing'"):
        config.get_config(source)
      continue
    expected = {key: (before[key], value) for key, value in named.items() if before[key] != value}
    assert expected, name
    assert differences(base, config.get_config(source)) == expected
    # Only the MLP has keys that may already be so.
    assert set(named) - set(expected) <= {"model.object_encoder.features", "train.revive_idle"}


@functools.cache
def system_of(name):
  """A tiny model of digits with one ablation, or none."""
  names = (name,) if name else ()
  return make_system(read_settings(ablations.apply(runs.shrink(digits.get_config()), names)), DATA)


PRIOR, POSTERIOR = ({"prior_within", "prior_between"}, {"posterior_within", "posterior_between"})
SPARSITY = {
  "no_posterior_sparsity": POSTERIOR,
  "no_prior_sparsity": PRIOR,
  "no_sparsity": PRIOR | POSTERIOR,
}


@pytest.mark.parametrize("name", SPARSITY)
def test_ablated_losses_stay_zero_under_the_schedule(name):
  off = SPARSITY[name]
  for step in (0, 5_000, 8_000, 20_000):
    base, weights = (scheduled_weights(system_of(n), step) for n in ("", name))
    assert {term for term in weights if weights[term] == 0} == off
    assert all(weights[term] == base[term] for term in set(weights) - off)


# Properties of the ablated model that the whole one does not have; their effects: test_models_*.py.
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


def test_effects_on_the_model():
  assert set(ablations.MENU) == {*SPARSITY, *EFFECTS}
  for name, has_effect in EFFECTS.items():
    assert has_effect(system_of(name).module), name
    assert not has_effect(system_of("").module), name


def test_an_mlp_is_trained_by_presets_that_revive_idle_objects():
  assert digits.get_config("views").train.revive_idle
  build(read_settings(runs.shrink(digits.get_config("views,ablation=mlp_object_encoder"))))


@pytest.mark.parametrize(
  ("preset", "message"),
  [
    ("ablation=", "'ablation='"),
    ("ablate=no_noise", "'ablate=no_noise'"),
    ("ablation=no_noise+no_nois", "'no_nois'(?s:.*)no_posterior"),
    ("ablation=no_sparsity+no_prior_sparsity", "'no_prior_sparsity'"),
    (
      "ablation=linear_part_encoder+mean_pooled_part_encoder",
      r"'mean_pooled_part_encoder'.*model\.part_encoder\.pooling",
    ),
  ],
)
def test_wrong_ablations_are_refused(preset, message):
  with pytest.raises(ValueError, match=message):
    digits.get_config(preset)


@pytest.mark.parametrize(
  ("preset", "folder"),
  [
    ("ablation=no_noise+no_deformations", "digits-no_noise-no_deformations"),
    ("modern,ablation=no_deformations,ablation=no_noise", "digits-modern-no_deformations-no_noise"),
  ],
)
def test_two_ablations_at_once(preset, folder):
  assert set(differences(digits.get_config(), digits.get_config(preset))) == {
    "model.part_encoder.presence_noise",
    "model.object_decoder.presence_noise",
    "model.object_decoder.deformations",
  }
  command = parse_command_line([f"--config={ROOT}/configs/digits.py:{preset}"], default_config="")
  assert command.workdir == pathlib.Path("runs") / folder


@pytest.mark.parametrize(
  ("first", "second"),
  [("digits.py:", "digits.py:views,"), ("mnist.py:quick,", "mnist.py:quick_views,")],
)
def test_a_second_run_goes_on_from_the_first_with_the_same_ablations(first, second):
  first_run, second_run = (
    parse_command_line(
      [f"--config={ROOT}/configs/{source}ablation=no_noise+coupled_mixing"], default_config=""
    )
    for source in (first, second)
  )
  assert second_run.settings.train.start_from == str(first_run.workdir)


def test_help_lists_the_ablations(capsys):
  runs.train_py("--help", f"--config={ROOT}/configs/mnist.py:paper")
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  for name, sentence in ablations.ABLATIONS.items():
    assert [name, *sentence.split()] in lines


def test_a_config_without_ablations_says_so():
  source = f"{ROOT / 'configs' / 'cnn.py'}:ablation=no_noise"
  with pytest.raises(RunError, match=r"cnn\.py:ablation=no_noise"):
    parse_command_line([f"--config={source}"], default_config="")
