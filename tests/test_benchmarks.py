"""The benchmarks run at tiny sizes; what they measure there means nothing."""

import contextlib
import functools
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scae_jax
from benchmarks import commits, encode, likelihood, measuring, step, warp
from configs import mnist
from scae_jax import warping
from scae_jax.kernels.template_likelihood import template_log_prob
from scae_jax.layers import convnet
from scae_jax.models import part_capsules
from scae_jax.models.stacked_capsules import SCAE
from scae_jax.models.system import ImageSpec
from scae_jax.training.config import read_settings
from tests.references import random_pose
from tests.runs import shrink
from tests.stand_ins import call
from tests.tiny import compiled, random_variables, tiny_batch, tiny_system
from tests.toy_system import toy_config

HALF = "compute_dtype=bfloat16,part_decoder.likelihood_stride=2"


@pytest.fixture
def record_of(tmp_path, monkeypatch):
  """Runs a benchmark with these flags; gives what it writes, also where rows failed."""

  def run(module, *flags, failed=None):
    out = tmp_path / "new" / "record.json"
    with pytest.raises(SystemExit, match=failed) if failed else contextlib.nullcontext():
      call(monkeypatch, module, *flags, f"--out={out}")
    return json.loads(out.read_text())

  return run


def test_warp_benchmark_refuses_a_variant_that_is_wrong_and_times_the_others(
  record_of, monkeypatch, capsys
):
  right = warp.VARIANTS["gather"]
  monkeypatch.setitem(warp.VARIANTS, "wrong", lambda *inputs: 1.01 * right(*inputs))
  sizes = ["--batch=2", "--parts=3", "--template=4", "--canvas=6", "--rounds=2"]
  names = sorted(warp.VARIANTS)  # another order than by itself
  message = f"2 of {2 * len(names)} rows failed: wrong, forward; wrong, with"
  record = record_of(warp, *sizes, f"--variants={','.join(names)}", failed=message)
  assert list(record["milliseconds"]) == [
    f"{name}, {what}" for what in ("forward", "with gradient") for name in names
  ]
  for name, row in record["milliseconds"].items():
    if name.startswith("wrong"):
      assert "AssertionError" in row["error"]
    else:
      assert len(row) == 2
      assert min(row) > 0
  assert record["settings"] == {"batch": 2, "parts": 3, "template": 4, "canvas": 6}
  assert {"commit", "hardware", "versions", "date"} <= set(record)
  printed = capsys.readouterr().out
  assert "| gather, with gradient |" in printed
  assert "| wrong, forward | failed |" in printed


def test_functions_take_turns_and_what_raises_late_is_not_called_again():
  calls = []

  def call(name):
    calls.append(name)
    if name == "tired" and calls.count(name) == 3:
      raise RuntimeError("worn out")

  names = ("a", "tired", "b")
  rows = measuring.milliseconds({name: functools.partial(call, name) for name in names}, rounds=3)
  assert calls == [*names * 3, "a", "b"]  # the first of each is not timed
  assert rows["tired"] == "RuntimeError: worn out"
  assert len(rows["a"]) == len(rows["b"]) == 3


def test_commit_is_that_of_the_repository_or_else_what_travelled(tmp_path, monkeypatch):
  monkeypatch.setenv("SCAE_JAX_COMMIT", "c0ffee")
  assert measuring.commit() != "c0ffee"
  monkeypatch.setattr(measuring, "ROOT", tmp_path)
  monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
  assert measuring.commit() == "c0ffee"
  monkeypatch.delenv("SCAE_JAX_COMMIT")
  assert measuring.commit() == "unknown"


def test_likelihood_benchmark_times_every_variant_and_block(record_of, monkeypatch, capsys):
  calls = []

  def stand_in(*inputs, **options):
    """The kernel itself, which takes long to compile, has its own tests."""
    calls.append(inspect.signature(template_log_prob).bind(*inputs, **options).arguments)
    return likelihood.composed(*inputs)

  monkeypatch.setattr(likelihood, "template_log_prob", stand_in)
  options = ["--batch=2", "--parts=2", "--template=4", "--canvas=6", "--rounds=2", "--block=64,32"]
  record = record_of(likelihood, *options, "--interpret")
  found = ("composed", "fused, block 64", "fused, block 32")
  names = {f"{name}, {what}" for name in found for what in ("forward", "with gradient")}
  assert {(call["block"], call["interpret"]) for call in calls} == {(64, True), (32, True)}
  assert set(record["milliseconds"]) == names
  assert all(len(times) == 2 and min(times) > 0 for times in record["milliseconds"].values())
  sizes = {"batch": 2, "parts": 2, "template": 4, "canvas": 6, "channels": 1}
  assert record["settings"] == sizes
  assert set(likelihood.variants([64], interpret=False)) == {"composed"}
  assert "No GPU: only the composed likelihood is timed" in capsys.readouterr().out


TINY = ImageSpec(canvas=18, channels=1, num_classes=10)


def toy_settings(seeds=1):
  cadence = {"train__num_steps": 2, "train__steps_per_dispatch": 2, "train__log_every": 2}
  cadence |= {"train__eval_every": 0, "train__checkpoint_every": 0, "train__seeds": seeds}
  return read_settings(toy_config(**cadence))


def test_step_benchmark_has_the_parts_of_a_step(monkeypatch):
  """Each is traced: to compile them takes long."""

  def traced(calls, rounds):
    return {name: [len(jax.tree.leaves(jax.eval_shape(call)))] for name, call in calls.items()}

  monkeypatch.setattr(step, "whole_step", lambda *inputs: (lambda: jnp.zeros(()), {"GB held": 1.5}))
  monkeypatch.setattr(step, "straightforward_step", lambda *inputs: lambda: jnp.ones(()))
  monkeypatch.setattr(step, "milliseconds", traced)
  settings = step.resized(shrink(mnist.get_config("official"), num_steps=2), batch=4, steps=2)
  case = step.Case(settings, TINY, step.noise(settings, TINY))
  counts, times = step.measure({"": case, ", again": case}, rounds=1, parts=False)
  assert times == {"whole step": [0.5], "whole step, again": [0.5]}  # of two steps
  assert set(counts) == {"GB held", "GB held, again"}
  counts, times = step.measure({"": case}, rounds=1)
  assert counts == {"GB held": 1.5}
  assert {"whole step, likelihood composed", "a straightforward step", "optimiser"} <= set(times)
  assert {"image likelihood, with gradient", "CNN, forward"} <= set(times)
  assert all(isinstance(row, list) and row[0] > 0 for row in times.values()), times


def test_whole_and_straightforward_step_train():
  """On the toy; the benchmarks' own config takes minutes to compile here."""
  start = step.noise(toy_settings(), TINY)
  run, counts = step.whole_step(toy_settings(seeds=2), TINY, start)
  totals = [float(np.asarray(run()).mean()) for _ in range(3)]
  assert totals == sorted(totals, reverse=True)
  assert {"GFLOP a step", "GB moved a step", "GB held"} == set(counts)
  straightforward = step.straightforward_step(toy_settings(), TINY, start)
  totals = [float(straightforward()) for _ in range(3)]
  assert totals == sorted(totals, reverse=True)


def test_step_that_does_not_compile_leaves_the_others(monkeypatch):
  def whole_step(*inputs):
    if SCAE.log_prob is own:
      raise RuntimeError("out of memory")
    return (lambda: jnp.zeros(())), {}

  own = SCAE.log_prob
  monkeypatch.setattr(step, "whole_step", whole_step)
  monkeypatch.setattr(step, "straightforward_step", lambda *inputs: lambda: jnp.ones(()))
  monkeypatch.setattr(step, "parts_of_a_step", lambda *inputs: 1 / 0)
  case = step.Case(toy_settings(), TINY, step.noise(toy_settings(), TINY))
  counts, rows = step.measure({"": case}, rounds=2)
  assert counts == {}
  assert rows["whole step"] == "RuntimeError: out of memory"
  assert rows["parts of a step"].startswith("ZeroDivisionError")
  assert len(rows["whole step, likelihood composed"]) == len(rows["a straightforward step"]) == 2
  assert SCAE.log_prob is own


def test_composed_likelihood_is_the_same_number(monkeypatch):
  system, batch = tiny_system(), tiny_batch()
  variables = random_variables(system.module, batch, train=False)

  def log_prob(variables):
    return system.module.apply(variables, batch, train=False).reconstruction.log_prob

  own = compiled(log_prob)(variables)
  monkeypatch.setattr(part_capsules, "sum_by_example", None)  # what a CPU has instead
  with step.composed_likelihood():
    other = compiled(lambda variables: log_prob(variables))(variables)
  np.testing.assert_allclose(other, own, rtol=1e-5)


@pytest.mark.parametrize(
  ("flags", "starts"), [((), [""]), (("--pretrained=digits",), [", at the start", ", trained"])]
)
def test_step_benchmark_times_variants_of_the_model(record_of, monkeypatch, flags, starts):
  def whole_step(settings, data, start, num_devices):
    model = settings.config.model
    half = model.compute_dtype == "bfloat16" and model.part_decoder.likelihood_stride == 2
    return (lambda: 0), {"half": half, "trained": start.params is not None}

  monkeypatch.setattr(step, "whole_step", whole_step)
  variants = f"--model={HALF};"
  record = record_of(step, "--whole", "--rounds=1", "--batch=8", "--steps=2", variants, *flags)
  names = [f"whole step{start}{half}" for half in (f" ({HALF})", "") for start in starts]
  assert list(record["milliseconds"]) == names
  for name in names:
    end = name.removeprefix("whole step")
    assert record["settings"][f"half{end}"] == ("bfloat16" in name)
    assert record["settings"][f"trained{end}"] == ("trained" in name)


def test_straightforward_step_is_made_of_library_functions():
  own = warping.warp_templates, convnet.convolve
  rng = np.random.RandomState(0)
  bank, poses = rng.uniform(0, 1, (2, 3, 3, 1)), [[random_pose(rng) for _ in range(2)]]
  inputs = (jnp.asarray(bank, jnp.float32), jnp.asarray(poses), 6, 6)
  with step.library_warp(), step.library_convolution():
    assert warping.warp_templates not in own
    # As the model calls it.
    warped = jax.jit(warping.warp_templates, static_argnums=(2, 3))(*inputs)
    assert convnet.convolve is convnet.convolve_layers
  assert (warping.warp_templates, convnet.convolve) == own
  expected = jax.jit(own[0], static_argnums=(2, 3))(*inputs)
  np.testing.assert_allclose(warped, expected, atol=1e-5)


def test_seeds_and_devices_take_turns(record_of, monkeypatch):
  def whole_step(settings, data, start, num_devices):
    train = settings.train
    assert (train.batch_size, train.dispatch_length) == (8, 2)
    return (lambda: 0), {"seeds": train.seeds, "devices": num_devices}

  monkeypatch.setattr(step, "whole_step", whole_step)
  asked = []
  monkeypatch.setattr(step.jax.config, "update", lambda *given: asked.append(given))
  sizes = ("--batch=8", "--steps=2", "--rounds=1")
  record = record_of(step, *sizes, "--seeds=1,2", "--devices=1,4")
  assert asked == [("jax_num_cpu_devices", 4)]
  for seeds, devices in ((1, 1), (1, 4), (2, 1), (2, 4)):
    end = f", {seeds} seeds, {devices} devices"
    assert record["milliseconds"].pop(f"whole step{end}")
    assert [record["settings"][name + end] for name in ("seeds", "devices")] == [seeds, devices]


@pytest.mark.slow
def test_encode_benchmark_times_both(record_of, monkeypatch, capsys):
  monkeypatch.setattr(scae_jax, "load", functools.partial(scae_jax.load, batch_size=4))
  record = record_of(encode, "--model=digits", "--images=10", "--rounds=1")
  assert record["settings"]["images"] == 8
  assert set(record["milliseconds"]) == {"encode", "forward pass"}
  assert capsys.readouterr().out.count("images a second") == 2


def test_commits_reads_the_dispatches_that_are_whole(tmp_path):
  path = tmp_path / "metrics.jsonl"
  assert commits.times_of(path, 50) == []
  rows = [
    {"split": "train", "step": step, "timing": {"steps_per_second": rate}}
    for step, rate in ((50, 2.0), (100, 4.0), (101, 8.0))
  ]
  rows.insert(1, {"split": "test", "step": 50, "timing": {}})
  text = "".join(json.dumps(row) + "\n" for row in rows)
  path.write_text(text + json.dumps(rows[0])[:-3])  # a line that is being written
  assert commits.times_of(path, 50) == [0.5, 0.25]
