"""Set transformer (Lee et al. 2019) over part capsules, with masks for absent parts."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from scae_jax.layers.affine import Affine, compose
from scae_jax.math.mixtures import safe_log
from scae_jax.typing import Array, Float, typed


def hard_mask(presence: Array) -> Array:
  """-1e32 (1 - presence), as in the authors' release; no gradient flows to presences.

  Unless presences are exactly 1, all attention is on the element of the largest presence.
  """
  return -1e32 * (1.0 - jax.lax.stop_gradient(presence))


# Masks from presences [b, n], added to the attention logits of elements. With `log_presence`,
# attention is proportional to presence.
MASKS = {"log_presence": safe_log, "hard": hard_mask, "none": jnp.zeros_like}


class MultiHeadAttention(nn.Module):
  """Scaled dot-product attention with a bias on all four projections."""

  num_heads: int  # must divide features
  features: int  # width of queries, keys, values and output
  # Type of products and result, such as `bfloat16`, with a softmax in float32; None: that of the
  # inputs.
  compute_dtype: str | None = None

  @nn.compact
  @typed
  def __call__(
    self,
    queries: Float[Array, "b q d"],
    values: Float[Array, "b n e"],
    mask: Float[Array, "b n"],
  ) -> Float[Array, "b q f"]:
    """Attends from queries to values; `mask` is added to the logits of each value."""
    shape = (self.num_heads, self.features // self.num_heads)
    query = nn.DenseGeneral(shape, dtype=self.compute_dtype, name="query")(queries)
    key = nn.DenseGeneral(shape, dtype=self.compute_dtype, name="key")(values)
    value = nn.DenseGeneral(shape, dtype=self.compute_dtype, name="value")(values)
    # Not jax.nn.dot_product_attention: its softmax is in float32, so differences in float64 cannot
    # check gradients.
    dtype = jnp.promote_types(query.dtype, jnp.float32)
    logits = jnp.einsum("bqhd,bnhd->bhqn", query, key, preferred_element_type=dtype)
    logits = logits / math.sqrt(shape[1]) + mask[:, None, None, :]
    attention = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
    attended = jnp.einsum("bhqn,bnhd->bqhd", attention, value)
    return nn.DenseGeneral(self.features, axis=(-2, -1), dtype=self.compute_dtype, name="output")(
      attended
    )


class AttentionBlock(nn.Module):
  """(Attention + residual) times presence, layer norm; MLP + residual, layer norm."""

  num_heads: int  # heads of the attention
  features: int  # width of the block; the MLP is twice as wide inside
  # As for `MultiHeadAttention`; layer norm takes its statistics in float32.
  compute_dtype: str | None = None
  norm_epsilon: float = 1e-6  # added to the variance in layer norm

  @nn.compact
  @typed
  def __call__(
    self,
    queries: Float[Array, "b q d"],
    values: Float[Array, "b n e"],
    mask: Float[Array, "b n"],
    query_presence: Float[Array, "b q"],
  ) -> Float[Array, "b q d"]:
    dtype = self.compute_dtype
    attend = MultiHeadAttention(self.num_heads, self.features, dtype, name="attention")
    x = (queries + attend(queries, values, mask)) * query_presence[..., None].astype(queries.dtype)
    x = nn.LayerNorm(self.norm_epsilon, dtype=dtype, name="norm_attention")(x)
    hidden = jax.nn.relu(nn.Dense(2 * self.features, dtype=dtype, name="mlp_hidden")(x))
    output = nn.Dense(self.features, dtype=dtype, name="mlp_output")(hidden)
    return nn.LayerNorm(self.norm_epsilon, dtype=dtype, name="norm_mlp")(x + output)


class SelfAttentionBlock(nn.Module):
  """Elements attend to all elements (SAB), or to inducing points (ISAB).

  Inducing points are learned, and attend to all elements first.
  """

  num_heads: int  # heads of the attention
  features: int  # width
  num_inducing: int = 0  # number of inducing points; 0 is full self-attention
  compute_dtype: str | None = None  # as for `AttentionBlock`
  norm_epsilon: float = 1e-6  # likewise

  @nn.compact
  @typed
  def __call__(
    self, x: Float[Array, "b n d"], mask: Float[Array, "b n"], presence: Float[Array, "b n"]
  ) -> Float[Array, "b n d"]:
    sizes = (self.num_heads, self.features, self.compute_dtype, self.norm_epsilon)
    block = AttentionBlock(*sizes, name="block")
    if not self.num_inducing:
      return block(x, x, mask, presence)
    shape = (self.num_inducing, self.features)
    points = self.param("inducing_points", nn.initializers.glorot_uniform(), shape, jnp.float32)
    points = jnp.broadcast_to(points[None], (x.shape[0], *shape)).astype(x.dtype)
    ones = jnp.ones(points.shape[:2])
    induced = AttentionBlock(*sizes, name="induce")
    return block(x, induced(points, x, mask, ones), jnp.zeros_like(ones), presence)


class SeedAttention(nn.Module):
  """Attention from learned seeds to elements that are widened by an affine map.

  The result is that of `MultiHeadAttention(seeds, widened elements)`. All its maps are affine, so
  they are composed first and applied to the narrow elements.
  """

  num_heads: int  # must divide features
  features: int  # width of the widened elements, of seeds and output
  compute_dtype: str | None  # as for `MultiHeadAttention`

  @nn.compact
  @typed
  def __call__(
    self,
    seeds: Float[Array, "k f"],
    elements: Float[Array, "b n d"],
    mask: Float[Array, "b n"],
    widen: tuple[Float[Array, "d f"], Float[Array, " f"]],
  ) -> Float[Array, "b k f"]:
    """`mask` is added to the logits of each element; `widen` has kernel and bias."""
    wide, heads = (self.features,), (self.num_heads, self.features // self.num_heads)
    query = nn.DenseGeneral(heads, name="query")(seeds) / math.sqrt(heads[1])
    key, key_bias = compose(widen, Affine(wide, heads, name="key")())
    value, value_bias = compose(widen, Affine(wide, heads, name="value")())
    output, output_bias = Affine(heads, wide, name="output")()

    x = elements if self.compute_dtype is None else elements.astype(self.compute_dtype)
    query_of_elements = jnp.einsum("khe,dhe->hkd", query, key).astype(x.dtype)
    sum_type = jnp.promote_types(x.dtype, jnp.float32)
    logits = jnp.einsum("hkd,bnd->bhkn", query_of_elements, x, preferred_element_type=sum_type)
    logits = logits + jnp.einsum("khe,he->hk", query, key_bias)[None, :, :, None]
    attention = jax.nn.softmax(logits + mask[:, None, None, :], axis=-1).astype(x.dtype)
    attended = jnp.einsum("bhkn,bnd->bkhd", attention, x)
    output_of_elements = jnp.einsum("dhe,hef->hdf", value, output).astype(x.dtype)
    bias = jnp.einsum("he,hef->f", value_bias, output) + output_bias
    return (
      jnp.einsum("bkhd,hdf->bkf", attended, output_of_elements) + bias.astype(x.dtype)[None, None]
    )


class SetTransformer(nn.Module):
  """Maps a set of elements with presences to a fixed number of vectors.

  Linear map, self-attention blocks, linear map, then attention from learned seeds. The result is
  invariant to permutations of the elements with their presences.
  """

  num_outputs: int  # number of seeds, k
  output_features: int  # width of each output
  num_layers: int  # self-attention blocks
  num_heads: int  # heads, in the blocks and in the last attention
  features: int  # width of the blocks
  num_inducing: int  # inducing points of each block; 0 is full self-attention
  mask: str  # one of `MASKS`
  # Type of products and activations, such as `bfloat16`, with softmax and mask in float32; None:
  # that of the elements. The result always has the type of the elements.
  compute_dtype: str | None = None
  norm_epsilon: float = 1e-6  # added to the variance in layer norm

  @nn.compact
  @typed
  def __call__(
    self, elements: Float[Array, "b n d"], presence: Float[Array, "b n"]
  ) -> Float[Array, "b k e"]:
    mask = MASKS[self.mask](presence)
    if self.mask == "none":
      presence = jnp.ones_like(presence)
    x = nn.Dense(self.features, dtype=self.compute_dtype, name="input")(elements)
    sizes = (self.num_heads, self.features, self.num_inducing)
    numerics = (self.compute_dtype, self.norm_epsilon)
    for i in range(self.num_layers):
      block = SelfAttentionBlock(*sizes, *numerics, name=f"self_attention_{i}")
      x = block(x, mask, presence)
    widen = Affine((self.features,), (self.output_features,), name="widen")()
    shape = (self.num_outputs, self.output_features)
    seeds = self.param("seeds", nn.initializers.glorot_uniform(), shape, jnp.float32)
    pool = SeedAttention(self.num_heads, self.output_features, self.compute_dtype, name="pool")
    return pool(seeds, x, mask, widen).astype(elements.dtype)
