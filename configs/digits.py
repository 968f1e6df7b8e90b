"""SCAE on the embedded digits: scikit-learn's 1,797, upsampled to 16x16, in a 20x20 canvas.

    python train.py
    python train.py --config=configs/digits.py:views

`views` continues the first run with two views of each image (docs/systems/scae.md).

Some fifteen minutes for both on a core of an AMD EPYC. LIN-MATCH on the 360 test digits, mean of
five seeds: 95.2 % by posterior mass and 95.0 % by prior presences; after the first run 85.1 and
85.9; k-means on the pixels 74.1 % (results/digits). Results vary by seed and by machine.

What differs from the paper:
- Everything is smaller; Adam under a cosine instead of RMSProp.
- The weight of deformations is 30 times as large. If object-part relations deform freely, one
  object explains every digit. If they are stiff, different digits soon need different objects.
- The weights of prior sparsity are 10 within and 2 between examples instead of 1; that of posterior
  sparsity between examples is 30 instead of 10.
- The weight of posterior sparsity within an example has a schedule: 5 at first, so that parts form
  before objects commit to them; 30 by step 8,000; 2 from step 10,000 on. If it stays at 30, each
  part belongs to one object with certainty, and a digit has one object for each way of writing it;
  k-means splits some digits and merges others. At 2 the objects of a digit share it. `views` keeps
  it at 30 until each object belongs to one digit, then lowers it to 0.
- Mixing weights of the part mixture are not normalised, as in the authors' release.
"""

from ml_collections import ConfigDict

import configs
from scae_jax.models import ablations

ABLATIONS = ablations.ABLATIONS
VIEWS = {
  "data.two_views": True,
  "data.max_rotation": 10.0,
  "data.max_stretch": 0.1,
  "data.max_shear": 0.1,
  "model.feature_gradient": ((0, 1.0), (8_000, 1.0), (9_000, 0.0)),
  "loss.weights.views": 30.0,
  "loss.schedule.posterior_within": ((0, 15.0), (8_000, 15.0), (10_000, 0.0)),
  "train.num_steps": 15_000,
  "train.revive_idle": (2_000, 4_000),
  "train.start_from": "runs/digits",
  "optimizer.learning_rate": 1e-3,
  "optimizer.warmup_steps": 200,
}
PRESETS = {"modern": {}, "views": VIEWS}


def shared_sections(system: str) -> ConfigDict:
  """A config for a system, with the sections that all systems share as `get_config` sets them."""
  digits, config = get_config(), ConfigDict()
  config.system = system
  for section in ("data", "train", "optimizer", "evaluation"):
    config[section] = digits[section]
  return config


def get_config(preset: str = "") -> ConfigDict:
  """The config of `PRESET` or `PRESET,ablation=NAME`; ValueError if either is unknown."""
  preset, names = ablations.split(preset)
  config = ConfigDict()
  config.system = "scae"

  config.model = ConfigDict()
  config.model.num_parts = 16  # m
  config.model.num_objects = 24  # k
  config.model.target = "image"  # what parts draw: image or sobel
  config.model.reconstruction_vote = "encoder"  # encoder, soft or hard
  config.model.reconstruction_presence = "encoder"  # encoder, soft or hard
  config.model.normalize_mixing = False  # of the part mixture
  config.model.stop_gradients = "parts"  # from OCAE to PCAE: none, parts (not features), all
  config.model.feature_gradient = ()  # factor of that gradient: ((step, factor), ...)
  config.model.compute_dtype = "float32"  # of CNN and set transformer; or bfloat16

  encoder = config.model.part_encoder = ConfigDict()
  encoder.widths = (24, 24, 24, 24)  # convolution channels
  encoder.strides = (2, 1, 1, 1)
  encoder.num_features = 16  # special features of a part
  encoder.pooling = "attention"  # attention, mean or linear
  encoder.places = "free"  # free, or cells: near the place that attention looks at
  encoder.presence_noise = 4.0  # width of the uniform noise on logits
  encoder.noise_in_evaluation = False
  encoder.similarity = False  # similarity transforms instead of affine ones

  decoder = config.model.part_decoder = ConfigDict()
  decoder.template_size = 7  # pixels
  decoder.nonlinearity = "sigmoid"  # sigmoid or relu1
  decoder.bright_start = False  # for images without a dark background
  decoder.mixing = "alpha"  # alpha or coupled
  decoder.colour = True
  decoder.pixel_scale = 1.0  # standard deviation
  decoder.likelihood_stride = 1  # n: training sums every n-th pixel in both directions

  objects = config.model.object_encoder = ConfigDict()
  objects.kind = "set_transformer"  # set_transformer or mlp
  objects.output_features = 64  # of each object's vector
  objects.num_layers = 3  # self-attention blocks
  objects.num_heads = 1
  objects.features = 16  # width of the blocks
  objects.num_inducing = 0  # 0 is full self-attention
  objects.mask = "log_presence"  # log_presence, hard or none
  objects.norm_epsilon = 1e-6  # added to the variance in layer norm
  objects.frame = "image"  # image or parts: what the poses of parts are relative to

  votes = config.model.object_decoder = ConfigDict()
  votes.hidden = 64  # width of the hidden layers
  votes.capsule_features = 32  # width between an object's two MLPs
  votes.presence_noise = 4.0  # width of the uniform noise on logits
  votes.noise_in_evaluation = False
  votes.similarity = False  # similarity transforms instead of affine ones
  votes.deformations = True  # object-part relations have a dynamic part
  votes.learn_vote_scale = True  # otherwise 1

  config.loss = ConfigDict()
  config.loss.prior = "l2"  # sparsity of presences: l2, entropy or kl
  config.loss.prior_within_constant = 0.0  # capsules present in an example; 0 is K / C
  config.loss.posterior = "entropy"  # sparsity of the posterior mass
  config.loss.unbiased_between = False  # correct between terms for the variance of a batch
  weights = config.loss.weights = ConfigDict()
  weights.image = 1.0  # -log-likelihood of the pixels
  weights.parts = 1.0  # -log-likelihood of the part poses
  weights.prior_within = 10.0  # sparsity of presences, in an example
  weights.prior_between = 2.0  # and over the batch
  weights.posterior_within = 2.0  # sparsity of the posterior mass, in an example
  weights.posterior_between = 30.0  # and over the batch
  weights.dynamic = 300.0  # dynamic object-part relations (deformations)
  weights.views = 0.0  # divergence of the posterior mass of an image's two views
  weights.prior_probe = 1.0  # cross-entropies of the two linear probes
  weights.posterior_probe = 1.0
  schedule = config.loss.schedule = ConfigDict()  # factors of weights: ((step, factor), ...)
  schedule.prior_within = schedule.prior_between = schedule.posterior_between = ()
  schedule.posterior_within = ((0, 2.5), (8_000, 15.0), (10_000, 1.0))
  schedule.dynamic = schedule.views = ()

  config.data = ConfigDict()
  config.data.name = "digits"
  config.data.dir = ""  # "" is the source's default
  config.data.cache_dir = ""  # "" is ~/.cache/scae_jax
  config.data.affnist_dir = ""  # official .mat files; "" generates similar images from MNIST
  config.data.resize = 0  # pixels: every image becomes a square of this side; 0 is off
  config.data.resize_fill = "crop"  # of images that are not square: crop the middle, or pad
  config.data.channels = 0  # 1 is grey, 3 RGB; 0 is what the images have
  config.data.ink = False  # photographs of writing become bright ink on a dark ground, grey
  config.data.middle = ()  # height and width of the middle of each image that is kept; () keeps all
  config.data.num_validation = 0  # training images to hold out; 0 holds out the test split
  config.data.canvas = 20  # pixels
  config.data.max_shift = 2  # pixels
  config.data.random_place = False  # anywhere on the canvas, instead of shifts
  config.data.max_rotation = 0.0  # degrees in either direction, in training; 0 is off
  config.data.max_stretch = 0.0  # scales of x and y differ from 1 by up to this, in training
  config.data.max_shear = 0.0  # in training, pixels to the right for each pixel down
  config.data.two_views = False  # a training batch has each image twice, changed differently
  config.data.overlay = False  # two images of different classes, added: MultiMNIST
  config.data.normalize = False  # each whole image to zero mean and unit variance
  config.data.crop = 0  # pixels; random in training, the middle otherwise; 0 is off
  config.data.brightness = 0.0  # in training, at most this is added or subtracted; 0 is off
  config.data.contrast = 0.0  # in training, a factor of up to 1 +- this; 0 is off

  config.train = ConfigDict()
  config.train.num_steps = 18_000
  config.train.batch_size = 64
  config.train.seed = 0  # of parameters, the order of examples and noise
  config.train.seeds = 1  # number of runs at once: seed, seed + 1, ...
  config.train.steps_per_dispatch = 100  # steps between looks at the host
  config.train.log_every = 500  # steps
  config.train.eval_every = 1_000  # steps between held-out losses
  config.train.checkpoint_every = 1_000  # steps
  config.train.keep_checkpoints = 2  # number of latest checkpoints, beside the best
  config.train.tensorboard = False
  config.train.compilation_cache = ""  # folder; "" is the default one, "off" is none
  config.train.start_from = ""  # workdir or folder of pretrained parameters; "" is off
  config.train.start_modules = ()  # modules to start from it, such as part_encoder; () is all
  config.train.start_step = 0  # step of these parameters, from which training continues
  config.train.revive_idle = ()  # steps before which idle objects become copies of busy ones

  config.optimizer = ConfigDict()
  config.optimizer.name = "adam"  # adam or rmsprop
  config.optimizer.learning_rate = 2e-3
  config.optimizer.schedule = "cosine"  # constant, exponential or cosine
  config.optimizer.warmup_steps = 0
  config.optimizer.decay_steps = 0  # 0: a cosine ends at train.num_steps
  config.optimizer.decay_rate = 0.85  # exponential
  config.optimizer.end_factor = 0.0  # final share of the learning rate
  config.optimizer.momentum = 0.9  # rmsprop
  config.optimizer.decay = 0.9  # rmsprop, of the mean square
  config.optimizer.b1 = 0.9  # adam
  config.optimizer.b2 = 0.999  # adam
  config.optimizer.epsilon = 1e-8  # 0. for rmsprop: (10 train.batch_size)^-2
  config.optimizer.clip_norm = 0.0  # 0 is off
  config.optimizer.weight_decay = 0.0  # L2, in the gradient; 0 is off

  config.evaluation = ConfigDict()
  config.evaluation.batch_size = 256
  config.evaluation.max_examples = 0  # 0 is all
  return ablations.apply(configs.preset(config, PRESETS, preset), names)
