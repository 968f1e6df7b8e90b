"""Log-likelihood of images under warped, coloured templates, without an image of any part.

Kosiorek et al. 2019, section 2.2. Equal to `warping.warp_templates`, colours,
`mixtures.pixel_mixture`, `mixtures.log_prob` and a sum over pixels; but composed, each of these
writes an array of batch x parts x pixels and reads it again. Here a pixel's parts are visited one
after the other, and only two numbers a pixel are kept:

  mixing = log sum_j exp(logit_j)          joint = log sum_j exp(logit_j + log density_j)

over parts and background; the log-likelihood is joint - mixing. With them the backward pass knows a
part's posterior, exp(logit + log density - joint), and mixing probability, exp(logit - mixing),
without looking at any other part, as flash attention does (Dao et al. 2022, arXiv 2205.14135). So
it runs one program a part and image. Gradients of templates, which all images share, are matrix
products an image at a time, summed over images afterwards: nothing is added to
one address by two programs, and a sum has the same order in every run.

Pallas, lowered by Triton: for GPUs. Blocks are powers of two because Triton takes no others.
"""

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
from absl import logging
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from scae_jax import geometry, mixtures
from scae_jax.kernels import template_pixels
from scae_jax.kernels.template_pixels import POSE_SIZE, Sizes, by_tile, pixel_grid
from scae_jax.shards import on_each_device
from scae_jax.typing import Array, Float, typed

# Pixels that a program looks at together, unless told otherwise.
BLOCK = 64
# Threads that a GPU runs in step.
WARP = 32
# Numbers of a template, each axis filled up to a power of two, that a program may keep in its
# registers: three colours and the logits of 32 x 32 pixels.
MAX_KEPT = 4 * 32 * 32


@typed
def template_log_prob(
  bank: Float[Array, "m t t n"],
  poses: Float[Array, "b m 2 3"],
  colours: Float[Array, "b m c"],
  presence: Float[Array, "b m"],
  background_mean: Float[Array, ""],
  background_logit: Float[Array, ""],
  image: Float[Array, "b h w c"],
  scale: float,
  *,
  block: int = BLOCK,
  interpret: bool = False,
) -> Float[Array, " b"]:
  """log p(image), summed over pixels, nats; gradients flow to all arrays but the image.

  A template's last channel, of n = c + 1, are its mixing logits; the others are multiplied by the
  part's colour. A pose that has collapsed draws nothing and gets no gradient, nor does a presence
  below `mixtures.MIN_PROB`. The background has one brightness in every channel; `scale` is the
  standard deviation of a pixel. The result is known to 1e-7 of the largest mixing logit.

  Each device of a mesh computes its own images; see `shards`. A `block` is the number of pixels
  that a program looks at together, a power of two from 16 to 512. `interpret` runs the kernels as
  JAX operations, slowly: the only way without a GPU. ValueError if n is not c + 1.
  """
  height, width, channels = image.shape[1:]
  if bank.shape[-1] != channels + 1:
    raise ValueError(f"bank must have {channels + 1} channels, the last the mixing logits")
  sizes = Sizes(height, width, channels, bank.shape[1], float(scale), block, interpret)
  inverse = jax.vmap(jax.vmap(geometry.invert))(poses).reshape(*presence.shape, POSE_SIZE)
  background = jnp.stack([background_mean, background_logit])
  pixels = by_tile(sizes, jnp.moveaxis(image, -1, 1), mode="constant")
  log_presence = mixtures.safe_log(presence)
  return _log_prob(sizes, bank, inverse, colours, log_presence, background, pixels)


@functools.cache
def compiles(parts: int, side: int, height: int, width: int, channels: int) -> bool:
  """Whether a template fits the kernels and they compile, for one example; warns if not.

  So a GPU or a release of JAX that they do not suit costs time and not the run.
  """
  sizes = Sizes(height, width, channels, side, 1.0, BLOCK, interpret=False)
  if sizes.padded_channels * sizes.padded_side**2 > MAX_KEPT:
    logging.warning(
      "The likelihood is computed without its kernel: templates of %d pixels are too large", side
    )
    return False
  shapes = ((parts, side, side, channels + 1), (1, parts, 2, 3), (1, parts, channels), (1, parts))
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (*shapes, (), ())]
  image = jax.ShapeDtypeStruct((1, height, width, channels), jnp.float32)

  def compile_gradient() -> None:
    gradient = jax.grad(lambda *inputs: jnp.sum(template_log_prob(*inputs, scale=1.0)))
    jax.jit(gradient).lower(*arrays, image).compile()

  try:
    # In a thread of its own, around which there is no trace and no mesh: a `shard_map` refuses it.
    with ThreadPoolExecutor(1) as thread:
      thread.submit(compile_gradient).result()
  except Exception as error:  # the compiler's errors have no class of their own
    why = str(error).partition("\n")[0]
    logging.warning("The likelihood is computed without its kernel, which fails here: %s", why)
    return False
  return True


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_prob(sizes: Sizes, *inputs: Array) -> Array:
  """The same, of inverse poses [b, m, 6], background [mean, logit] and pixels [b, c, p]."""
  return _log_prob_forward(sizes, *inputs)[0]


def _log_prob_forward(sizes: Sizes, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
  bank, inverse, colours, log_presence, background, pixels = inputs
  grid = pixel_grid(sizes, bank.dtype)
  mixing, joint = on_each_device(
    functools.partial(_forward, sizes),
    shared=(grid, _tables(bank), background),
    examples=(inverse, colours, log_presence, pixels),
  )
  # The densities' constant is the same for every component.
  constant = sizes.channels * (math.log(sizes.scale) + mixtures.HALF_LOG_2PI)
  log_prob = jnp.sum(grid[2][None] * (joint - mixing - constant), axis=-1)
  return log_prob, (*inputs, mixing, joint)


def _log_prob_backward(
  sizes: Sizes, saved: tuple[Array, ...], gradient: Array
) -> tuple[Array | None, ...]:
  bank, inverse, colours, log_presence, background, pixels, mixing, joint = saved
  of_part, of_bank = on_each_device(
    functools.partial(_backward, sizes),
    shared=(pixel_grid(sizes, bank.dtype), _tables(bank)),
    examples=(inverse, colours, log_presence, pixels, mixing, joint, gradient),
  )
  of_inverse, of_presence, of_colours = jnp.split(of_part, [POSE_SIZE, POSE_SIZE + 1], axis=-1)
  side = sizes.padded_side
  of_bank = jnp.sum(of_bank, axis=0).reshape(-1, sizes.padded_channels, side, side)
  of_bank = of_bank[:, : sizes.channels + 1, : sizes.side, : sizes.side]
  of_background = _background_gradient(sizes, background, pixels, mixing, joint, gradient)
  of_parts = jnp.moveaxis(of_bank, 1, -1), of_inverse, of_colours, of_presence[..., 0]
  return *of_parts, of_background, jnp.zeros_like(pixels)


def _forward(sizes: Sizes, *inputs: Array) -> list[Array]:
  """Runs `forward_kernel` on a batch: both of its sums, [b, p] each."""
  grid, tables, _, _, _, log_presence, _ = inputs
  batch, parts = log_presence.shape
  block = pl.BlockSpec((None, sizes.block), lambda b, i: (b, i))
  kept = jax.ShapeDtypeStruct((batch, grid.shape[1]), grid.dtype)
  return pl.pallas_call(
    functools.partial(template_pixels.forward_kernel, sizes=sizes),
    grid=(batch, sizes.num_blocks),
    in_specs=[
      pl.BlockSpec((3, sizes.block), lambda b, i: (0, i)),
      pl.BlockSpec(tables.shape, lambda b, i: (0, 0, 0)),
      pl.BlockSpec((2,), lambda b, i: (0,)),
      pl.BlockSpec((None, parts, POSE_SIZE), lambda b, i: (b, 0, 0)),
      pl.BlockSpec((None, parts, sizes.channels), lambda b, i: (b, 0, 0)),
      pl.BlockSpec((None, parts), lambda b, i: (b, 0)),
      pl.BlockSpec((None, sizes.channels, sizes.block), lambda b, i: (b, 0, i)),
    ],
    out_specs=[block, block],
    out_shape=[kept, kept],
    compiler_params=plgpu.CompilerParams(num_warps=max(1, sizes.block // WARP), num_stages=1),
    interpret=sizes.interpret,
    name="template_log_prob_forward",
  )(*inputs)


def _backward(sizes: Sizes, *inputs: Array) -> list[Array]:
  """Runs `backward_kernel` on a batch: both of its results, with axes [b, m] in front."""
  grid, tables, _, _, log_presence, pixels, *_ = inputs
  batch, parts = log_presence.shape
  numbers = POSE_SIZE + 1 + sizes.channels
  matrix = (sizes.padded_channels * sizes.padded_side, sizes.padded_side)
  kept = pl.BlockSpec((None, grid.shape[1]), lambda m, b: (b, 0))
  return pl.pallas_call(
    functools.partial(template_pixels.backward_kernel, sizes=sizes),
    # Programs of one image are neighbours: they read the same pixels.
    grid=(parts, batch),
    in_specs=[
      pl.BlockSpec(grid.shape, lambda m, b: (0, 0)),
      pl.BlockSpec((None, *tables.shape[1:]), lambda m, b: (m, 0, 0)),
      pl.BlockSpec((None, None, POSE_SIZE), lambda m, b: (b, m, 0)),
      pl.BlockSpec((None, None, sizes.channels), lambda m, b: (b, m, 0)),
      pl.BlockSpec((None, 1), lambda m, b: (b, m)),
      pl.BlockSpec((None, *pixels.shape[1:]), lambda m, b: (b, 0, 0)),
      kept,
      kept,
      pl.BlockSpec((1,), lambda m, b: (b,)),
    ],
    out_specs=[
      pl.BlockSpec((None, None, numbers), lambda m, b: (b, m, 0)),
      pl.BlockSpec((None, None, *matrix), lambda m, b: (b, m, 0, 0)),
    ],
    out_shape=[
      jax.ShapeDtypeStruct((batch, parts, numbers), grid.dtype),
      jax.ShapeDtypeStruct((batch, parts, *matrix), grid.dtype),
    ],
    # With fewer warps the matrices in float32 do not fit in registers.
    compiler_params=plgpu.CompilerParams(num_warps=max(1, 2 * sizes.block // WARP), num_stages=1),
    interpret=sizes.interpret,
    name="template_log_prob_backward",
  )(*inputs)


def _tables(bank: Array) -> Array:
  """Templates [m, t, t, n] between rings of zeros, one above and two below, [m, n, (t + 3)^2].

  With the rings every position between -1 and t has its four neighbours; see `warping`.
  """
  padded = jnp.pad(jnp.moveaxis(bank, -1, 1), ((0, 0), (0, 0), (1, 2), (1, 2)))
  return padded.reshape(*padded.shape[:2], -1)


def _background_gradient(
  sizes: Sizes, background: Array, pixels: Array, mixing: Array, joint: Array, gradient: Array
) -> Array:
  """Gradient by the background's mean and logit, [2]; they are the same at every pixel."""
  mean, logit = background
  error = (pixels - mean) / sizes.scale
  prior = template_pixels.probability(logit - mixing)
  posterior = template_pixels.probability(logit - 0.5 * jnp.sum(jnp.square(error), axis=1) - joint)
  weight = gradient[:, None] * pixel_grid(sizes, pixels.dtype)[2][None]
  of_mean = jnp.sum(weight * posterior * jnp.sum(error, axis=1)) / sizes.scale
  return jnp.stack([of_mean, jnp.sum(weight * (posterior - prior))])


_log_prob.defvjp(_log_prob_forward, _log_prob_backward)
