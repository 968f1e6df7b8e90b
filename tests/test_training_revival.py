"""Idle object capsules become copies of busy ones."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from scae_jax.errors import RunError
from scae_jax.models.system import Encoding
from scae_jax.training import revival, step
from scae_jax.training.loop import train
from scae_jax.training.revival import NOISE, noisy_copies, sources_of
from scae_jax.training.run import open_run
from scae_jax.training.step import Program
from tests import toy_system
from tests.runs import assert_same_run, stop_after
from tests.tiny import compiled, random_variables, tiny_batch, tiny_system
from tests.toy_system import toy_config

pytestmark = pytest.mark.usefixtures("compiled_once", "one_device_always")


def make_system(model, loss, data):
  """The toy system, whose code is the mass of objects and whose decoder has a row for each."""
  system = toy_system.make_system(model, loss, data)

  return dataclasses.replace(
    system,
    encoding=lambda output: Encoding(posterior_mass=output.code),
    object_params=lambda path: path == "decoder/kernel",
  )


def config_of(**changes):
  config = toy_config(train__num_steps=24, train__checkpoint_every=8, **changes).unlock()
  config.system = "tests.test_training_revival"
  return config.lock()


def test_an_idle_object_copies_the_busiest_which_is_then_half_as_busy():
  """Of five objects, those with a mass below a quarter of an even share are idle."""
  source, is_copy = sources_of(jnp.array([0.5, 0.0, 0.3, 0.151, 0.049]))
  assert source.tolist() == [0, 0, 2, 3, 2]
  assert is_copy.tolist() == [False, True, False, False, True]
  source, is_copy = sources_of(jnp.full(4, 0.25))
  assert source.tolist() == [0, 1, 2, 3]
  assert not is_copy.any()


def test_parameters_and_moments_of_idle_objects_are_copied_and_nothing_else(tmp_path, monkeypatch):
  """With one object that wins all examples, the others become it."""
  seen = []
  original = Program.run

  def run(self, state, step):
    if step == 8:
      bias = state.params["encoder"]["bias"].at[2].set(100.0)
      encoder = {**state.params["encoder"], "bias": bias}
      state = dataclasses.replace(state, params={**state.params, "encoder": encoder})
      revived = self._revive(state, self._train_split)
      seen.extend(jax.device_get([(s.params, s.opt_state) for s in (state, revived)]))
      later = self._revive(dataclasses.replace(state, step=state.step + 1), self._train_split)
      assert np.any(later.params["decoder"]["kernel"] != seen[1][0]["decoder"]["kernel"])
    return original(self, state, step)

  monkeypatch.setattr(Program, "run", run)
  config = config_of(train__revive_idle=(8,))
  train(config, tmp_path)
  (params, moments), (new, new_moments) = seen
  kernel, copies = params["decoder"]["kernel"], new["decoder"]["kernel"]
  np.testing.assert_array_equal(copies[2], kernel[2])
  noise = (np.delete(copies, 2, axis=0) - kernel[2]) / kernel[2].std()
  assert 0.5 * NOISE < noise.std() < 2 * NOISE
  changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), params, new)
  assert changed.pop("decoder") == {"bias": False, "kernel": True}
  assert not any(jax.tree.leaves(changed))
  for old, moved in zip(jax.tree.leaves(moments), jax.tree.leaves(new_moments), strict=True):
    if old.shape == kernel.shape:
      np.testing.assert_array_equal(moved, np.broadcast_to(old[2], kernel.shape))
    else:
      np.testing.assert_array_equal(moved, old)


def test_resumed_run_revives_again_and_seeds_are_what_they_are_alone(tmp_path, monkeypatch):
  """Step 6 is no multiple of the dispatch that the rest of the config allows."""
  steps, original = [], step.make_revival

  def make_revival(*arguments):
    revive = original(*arguments)

    def noted(state, split):
      steps.append(int(np.ravel(state.step)[0]))
      return revive(state, split)

    return noted

  monkeypatch.setattr(step, "make_revival", make_revival)
  config = config_of(train__revive_idle=(6, 16), train__seeds=2)
  train(config, tmp_path / "whole")
  assert steps == [6, 16]
  stop_after(3, config, tmp_path / "stopped", r"\b6\D+24\b")
  assert steps == [6, 16]
  train(config, tmp_path / "stopped")
  assert steps == [6, 16, 6, 16]
  assert_same_run(tmp_path / "stopped", tmp_path / "whole")
  alone = train(config_of(train__revive_idle=(6, 16), train__seed=1), tmp_path / "alone")
  together = open_run(tmp_path / "whole").variables[1]
  chex.assert_trees_all_close(together, alone.variables[1], rtol=1e-4, atol=1e-5)


def test_model_without_such_objects_is_refused(tmp_path):
  with pytest.raises(RunError, match=r"config\.train\.revive_idle"):
    train(toy_config(train__revive_idle=(8,)), tmp_path)
  assert not any(tmp_path.iterdir())
  assert tiny_system(**{"object_encoder.kind": "mlp"}).object_params is None


def test_copies_of_an_scae_object_have_its_presence_and_pose(monkeypatch):
  """Without noise: poses, presences and votes."""
  monkeypatch.setattr(revival, "NOISE", 0.0)
  system, batch = tiny_system(), tiny_batch()
  variables = random_variables(system.module, batch, train=True)
  source = jnp.array([1, 1, 2, 1])
  encode = compiled(system.encode)
  before = encode(variables, batch)
  flat = flatten_dict(variables["params"], sep="/")
  for path, leaf in flat.items():
    if system.object_params(path):
      flat[path] = noisy_copies(leaf, source, source != jnp.arange(4), jax.random.key(0))
  after = encode({"params": unflatten_dict(flat, sep="/")}, batch)
  for name in ("object_presence", "object_poses"):
    new, old = getattr(after, name), getattr(before, name)
    np.testing.assert_allclose(new, old[:, source], rtol=1e-5, atol=1e-6)
