// Layers, as in scae_jax/layers. A layer is { kernel, bias }, each { shape, data }; a vector is an
// array of numbers, a set of them an array of vectors. Products are in float64.

import { safe_log, softmax } from "./mixtures.js";

export const relu = (x) => Math.max(0, x);
export const elu = (x) => (x > 0 ? x : Math.expm1(x));
const ones = (length) => new Array(length).fill(1);

// Also of several heads, which are one wide vector here.
export function dense(x, { kernel, bias }) {
  const width = kernel.data.length / x.length;
  const output = bias ? Array.from(bias.data) : new Array(width).fill(0);
  x.forEach((value, i) => {
    if (value === 0) return;
    for (let j = 0; j < width; j++) output[j] += value * kernel.data[i * width + j];
  });
  return output;
}

// Dense layers with ReLU between them and none after the last.
export function mlp(x, layers) {
  const count = Object.keys(layers).length;
  for (let i = 0; i < count; i++) {
    x = dense(x, layers[`dense_${i}`]);
    if (i < count - 1) x = x.map(relu);
  }
  return x;
}

// Part k of arrays [n, ...] in a tree: the weights of one capsule.
export function one_of(tree, k) {
  if (!tree.data) {
    return Object.fromEntries(Object.entries(tree).map(([name, sub]) => [name, one_of(sub, k)]));
  }
  const size = tree.data.length / tree.shape[0];
  return { shape: tree.shape.slice(1), data: tree.data.subarray(k * size, (k + 1) * size) };
}

// One MLP of the same shape and its own weights for every capsule.
export function capsule_mlp(x, { capsules }) {
  return x.map((vector, k) => mlp(vector, one_of(capsules, k)));
}

// One VALID convolution of a map [side, side, channels]: the new map and its side.
export function convolve(map, side, kernel, bias, stride, activation) {
  const [rows, columns, channels, width] = kernel.shape;
  const output_side = Math.floor((side - rows) / stride) + 1;
  const output = new Float64Array(output_side * output_side * width);
  for (let y = 0; y < output_side; y++) {
    for (let x = 0; x < output_side; x++) {
      const at = (y * output_side + x) * width;
      output.set(bias.data, at);
      for (let r = 0; r < rows; r++) {
        for (let s = 0; s < columns; s++) {
          for (let c = 0; c < channels; c++) {
            const value = map[((y * stride + r) * side + x * stride + s) * channels + c];
            if (value === 0) continue;
            const from = ((r * columns + s) * channels + c) * width;
            for (let d = 0; d < width; d++) output[at + d] += value * kernel.data[from + d];
          }
        }
      }
    }
  }
  return [output.map(activation), output_side];
}

// An image [side, side, channels] with black margins.
export function pad(image, side, channels, before, after) {
  const padded_side = before + side + after;
  const padded = new Float64Array(padded_side * padded_side * channels);
  for (let y = 0; y < side; y++) {
    const row = image.subarray(y * side * channels, (y + 1) * side * channels);
    padded.set(row, ((y + before) * padded_side + before) * channels);
  }
  return padded;
}

// Margins with which a map sees an image everywhere alike, and the centres of its cells along one
// side, in pixels of the image.
export function covering_cells(side, strides) {
  let [stride, half] = [1, 0];
  for (const layer_stride of strides) {
    half += stride;
    stride *= layer_stride;
  }
  const first = -stride * Math.floor(half / stride);
  const last = stride * Math.floor((side - 1 + half) / stride);
  const count = (last - first) / stride + 1;
  const centres = Array.from({ length: count }, (_, i) => first + i * stride);
  return { before: half - first, after: last + half - (side - 1), centres };
}

// Whether each position of the map sees a pixel that is not black.
export function sees_ink(image, side, channels, strides) {
  const any = { shape: [3, 3, 1, 1], data: ones(9) };
  let inked = Float64Array.from({ length: side * side }, (_, i) =>
    image.subarray(i * channels, (i + 1) * channels).some((value) => value !== 0) ? 1 : 0,
  );
  for (const stride of strides) {
    [inked, side] = convolve(inked, side, any, { data: [0] }, stride, (x) => (x > 0 ? 1 : 0));
  }
  return Array.from(inked, (value) => value > 0);
}

// 3x3 convolutions, then a bias per position, if there is one: one vector a position.
export function convnet(image, side, params, strides, activation = relu) {
  let map = image;
  for (const [i, stride] of strides.entries()) {
    const [kernel, bias] = [params[`kernel_${i}`], params[`bias_${i}`]];
    [map, side] = convolve(map, side, kernel, bias, stride, activation);
  }
  const bias = params.position_bias?.data;
  const shifted = bias ? map.map((value, i) => value + bias[i]) : map;
  return in_parts(Array.from(shifted), side * side);
}

const sum_vectors = (vectors, weights) =>
  vectors[0].map((_, i) => vectors.reduce((sum, vector, n) => sum + weights[n] * vector[i], 0));

// A vector as `count` vectors, one after another.
export function in_parts(x, count) {
  const size = x.length / count;
  return Array.from({ length: count }, (_, m) => x.slice(m * size, (m + 1) * size));
}

// Every capsule looks at the map through its own softmax over positions.
//
// Where places of the positions are given, the mean of those that it looks at follows its numbers.
// It looks at attended positions alone, if there are any.
export function attention_pooling(map, num_capsules, params, places = null, is_attended = []) {
  const at_positions = map.map((x) => in_parts(dense(x, params.conv_1x1), num_capsules));
  const is_masked = (p) => is_attended.includes(true) && !is_attended[p];
  return at_positions[0].map((_, m) => {
    const seen = at_positions.map((capsules) => capsules[m]);
    const weights = softmax(seen.map((x, p) => (is_masked(p) ? -Infinity : x.at(-1))));
    const numbers = sum_vectors(seen, weights).slice(0, -1);
    return places ? [...numbers, ...sum_vectors(places, weights)] : numbers;
  });
}

function mean_pooling(map, num_capsules, params) {
  const mean = sum_vectors(map, ones(map.length)).map((sum) => sum / map.length);
  return in_parts(dense(mean, params.conv_1x1), num_capsules);
}

function linear_pooling(map, num_capsules, params) {
  return in_parts(dense(map.flat(), params.linear), num_capsules);
}

export const POOLINGS = {
  attention: attention_pooling,
  mean: mean_pooling,
  linear: linear_pooling,
};

// What is added to the attention logits of an element that is present with some probability.
const MASKS = {
  log_presence: safe_log,
  hard: (presence) => -1e32 * (1 - Math.fround(presence)), // a float32 near 1 is 1
  none: () => 0,
};

// Scaled dot-product attention from queries to values.
function multi_head_attention(queries, values, mask, params, num_heads) {
  const keys = values.map((x) => dense(x, params.key));
  const contents = values.map((x) => dense(x, params.value));
  const size = keys[0].length / num_heads;
  return queries.map((x) => {
    const query = dense(x, params.query);
    const attended = [];
    for (let from = 0; from < query.length; from += size) {
      const logits = keys.map((key, n) => {
        let product = 0;
        for (let i = from; i < from + size; i++) product += query[i] * key[i];
        return product / Math.sqrt(size) + mask[n];
      });
      const head = contents.map((content) => content.slice(from, from + size));
      attended.push(...sum_vectors(head, softmax(logits)));
    }
    return dense(attended, params.output);
  });
}

function layer_norm(x, { scale, bias }, epsilon) {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
  const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
  const factor = 1 / Math.sqrt(variance + epsilon);
  return x.map((value, i) => (value - mean) * factor * scale.data[i] + bias.data[i]);
}

// Attention + residual, times presence, layer norm; MLP + residual, layer norm.
function attention_block(queries, values, mask, query_presence, params, options) {
  const { num_heads, norm_epsilon } = options;
  const attended = multi_head_attention(queries, values, mask, params.attention, num_heads);
  return queries.map((query, n) => {
    const sum = query.map((value, i) => (value + attended[n][i]) * query_presence[n]);
    const x = layer_norm(sum, params.norm_attention, norm_epsilon);
    const output = dense(dense(x, params.mlp_hidden).map(relu), params.mlp_output);
    return layer_norm(x.map((value, i) => value + output[i]), params.norm_mlp, norm_epsilon);
  });
}

const rows_of = ({ shape, data }) => in_parts(Array.from(data), shape[0]);

function self_attention_block(x, mask, presence, params, options) {
  if (!params.inducing_points) {
    return attention_block(x, x, mask, presence, params.block, options);
  }
  const points = rows_of(params.inducing_points);
  const present = ones(points.length);
  const induced = attention_block(points, x, mask, present, params.induce, options);
  const no_mask = present.map(() => 0);
  return attention_block(x, induced, no_mask, presence, params.block, options);
}

// Linear map, self-attention blocks, linear map, then attention from learned seeds.
export function set_transformer(elements, presence, params, options) {
  const mask = presence.map(MASKS[options.mask]);
  if (options.mask === "none") presence = ones(presence.length);
  let x = elements.map((element) => dense(element, params.input));
  for (let i = 0; i < options.num_layers; i++) {
    x = self_attention_block(x, mask, presence, params[`self_attention_${i}`], options);
  }
  x = x.map((element) => dense(element, params.widen));
  return multi_head_attention(rows_of(params.seeds), x, mask, params.pool, options.num_heads);
}
