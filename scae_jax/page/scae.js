// The Stacked Capsule Autoencoder, one image at a time, as in scae_jax/models/scae. `model` is
// { params, options, canvas, channels }; options are the config's model section.

import { IDENTITY, compose, frame_of, invert, pose_matrix, sigmoid } from "./geometry.js";
import {
  POOLINGS, capsule_mlp, convnet, covering_cells, dense, mlp, pad, sees_ink, set_transformer,
} from "./layers.js";
import {
  argmax, logsumexp, posterior_mass, route, safe_log, softmax, softplus, to_unit_range,
  warp_template,
} from "./mixtures.js";

const POSE_SIZE = 6;
const MIN_VOTE_SCALE = 0.01;
const MAX_CELLS = 2; // from the place that attention looks at to the place of its part

// Pose, presence and special features of every part of an image [canvas, canvas, channels].
export function part_encoder(image, { params, options, canvas, channels }) {
  const { pooling, places, similarity, strides } = options.part_encoder;
  const { convnet: convolutions, pooling: weights } = params.part_encoder;
  const part_of = (x) => ({
    pose: pose_matrix(x.slice(0, POSE_SIZE), similarity),
    presence: sigmoid(x[POSE_SIZE]),
    features: x.slice(POSE_SIZE + 1),
  });
  if (places !== "cells") {
    const map = convnet(image, canvas, convolutions, strides);
    return POOLINGS[pooling](map, options.num_parts, weights).map(part_of);
  }
  const { before, after, centres } = covering_cells(canvas, strides);
  const padded = pad(image, canvas, channels, before, after);
  const side = before + canvas + after;
  const positions = centres.flatMap((y) => centres.map((x) => [x, y]));
  const is_attended = sees_ink(padded, side, channels, strides);
  const map = convnet(padded, side, convolutions, strides);
  const pooled = POOLINGS.attention(map, options.num_parts, weights, positions, is_attended);
  const to_image = 2 / (canvas - 1); // from pixels
  const reach = MAX_CELLS * strides.reduce((product, stride) => product * stride, 1) * to_image;
  return pooled.map((x) => {
    const part = part_of(x.slice(0, -2));
    for (const [i, place] of [[2, x.at(-2)], [5, x.at(-1)]]) {
      part.pose[i] = place * to_image - 1 + reach * part.pose[i];
    }
    return part;
  });
}

// Template of part m in [0, 1], [side, side, channels], without colour.
export function template({ params, options }, m) {
  const { data, shape } = params.part_decoder.templates;
  const size = data.length / shape[0];
  const raw = data.subarray(m * size, (m + 1) * size);
  return raw.map((x) => to_unit_range(x, options.part_decoder.nonlinearity));
}

// Mixing logits of part m, [side, side]; null where they are those of its means.
function mixing_logits({ params, options }, m) {
  if (options.part_decoder.mixing !== "alpha") return null;
  const size = options.part_decoder.template_size ** 2;
  return params.part_decoder.alphas.data.subarray(m * size, (m + 1) * size);
}

// The same as probabilities.
export const alpha = (model, m) => mixing_logits(model, m)?.map(sigmoid);

// Colours of a part in [0, 1] from its special features: where its template is 1, then where it is
// 0, if that is not black. Ones where parts have no colour.
export function colour(features, { params, options, channels }) {
  const { colour, nonlinearity } = options.part_decoder;
  if (!colour) return new Array(channels).fill(1);
  const starts = nonlinearity === "sigmoid" ? [0, -2] : [0.99, 0.01];
  const raw = mlp(features, params.part_decoder.colour_mlp);
  return raw.map((x, i) => to_unit_range(x + starts[i < channels ? 0 : 1], nonlinearity));
}

// Value x of a template in channel c, in the colours of its part.
function in_colour(x, c, part_colour, channels) {
  const ground = part_colour[channels + c] ?? 0;
  return ground + x * (part_colour[c] - ground);
}

// Brightness and mixing logit of the background.
function background({ params }) {
  const { background_mean, background_logit } = params.part_decoder;
  return [sigmoid(background_mean.data[0]), softplus(background_logit.data[0])];
}

// Template of part m without colour, with its mixing logits if it has any, as one more channel.
function bank(model, m) {
  const { channels } = model;
  const [means, logits] = [template(model, m), mixing_logits(model, m)];
  if (!logits) return means;
  return Float32Array.from({ length: means.length + logits.length }, (_, i) => {
    const [cell, c] = [Math.floor(i / (channels + 1)), i % (channels + 1)];
    return c < channels ? means[cell * channels + c] : logits[cell];
  });
}

// One part in an image: its means [canvas, canvas, channels] and mixing logits [canvas, canvas].
export function warp_part(model, m, pose, part_colour) {
  const { params, options, canvas, channels } = model;
  const { template_size, mixing } = options.part_decoder;
  const width = mixing === "alpha" ? channels + 1 : channels;
  const warped = warp_template(bank(model, m), template_size, width, pose, canvas);
  const mean = new Float32Array(canvas * canvas * channels).map(
    (_, i) => {
      const c = i % channels;
      return in_colour(warped[Math.floor(i / channels) * width + c], c, part_colour, channels);
    },
  );
  let logits = new Float32Array(canvas * canvas);
  if (mixing === "alpha") {
    logits = logits.map((_, i) => warped[i * width + channels]);
    return { mean, logits };
  }
  const temperature = softplus(params.part_decoder.temperature.data[0] + 0.5) + 1e-4;
  mean.forEach((value, i) => (logits[Math.floor(i / channels)] += value / channels / temperature));
  return { mean, logits };
}

// The image that warped parts draw, and whose each pixel is.
//
// `picture` [canvas, canvas, channels] has the mean of the component with the largest mixing
// probability; `share` [canvas, canvas, m] has each part's mixing probability.
export function draw(model, warped, presence) {
  const { canvas, channels } = model;
  const [mean, logit] = background(model);
  // Of presence 0 nothing is left, whatever the logits are.
  const log_presence = presence.map((value) => (value > 0 ? safe_log(value) : -Infinity));
  const picture = new Float32Array(canvas * canvas * channels);
  const share = new Float32Array(canvas * canvas * warped.length);
  for (let i = 0; i < canvas * canvas; i++) {
    const mixing = warped.map(({ logits }, m) => logits[i] + log_presence[m]);
    mixing.push(logit);
    const winner = argmax(mixing);
    for (let at = i * channels; at < (i + 1) * channels; at++) {
      picture[at] = winner < warped.length ? warped[winner].mean[at] : mean;
    }
    const total = logsumexp(mixing);
    for (let m = 0; m < warped.length; m++) {
      share[i * warped.length + m] = Math.exp(mixing[m] - total);
    }
  }
  return { picture, share };
}

// One vector an object, from rows of what is known of every part.
export function object_encoder(rows, presence, { params, options }) {
  const { kind } = options.object_encoder;
  if (kind === "set_transformer") {
    return set_transformer(
      rows, presence, params.object_encoder.set_transformer, options.object_encoder,
    );
  }
  const all = mlp(rows.flat(), params.object_encoder.mlp);
  const size = all.length / options.num_objects;
  return Array.from({ length: options.num_objects }, (_, k) => all.slice(k * size, (k + 1) * size));
}

// What every object says: its pose, and the pose, scale and presence of its vote for each part.
export function object_decoder(x, { params, options }) {
  const { similarity, deformations, learn_vote_scale } = options.object_decoder;
  const p = params.object_decoder;
  const num_parts = options.num_parts;
  const hidden = capsule_mlp(x, p.features).map((vector) => [...vector, 1]);
  return capsule_mlp(hidden, p.outputs).map((output, k) => {
    let start = 0;
    const take = (size, bias) => {
      const numbers = output.slice(start, (start += size));
      return bias ? numbers.map((value, i) => value + bias.data[k * size + i]) : numbers;
    };
    const pose = pose_matrix(take(POSE_SIZE, p.viewer_bias), similarity);
    const [capsule] = take(1, p.presence_bias);
    const share = take(num_parts, p.vote_presence_bias);
    const scale = learn_vote_scale ? take(num_parts, p.vote_scale_bias) : null;
    const object_part = Array.from({ length: num_parts }, (_, m) => {
      const from = (k * num_parts + m) * POSE_SIZE;
      const fixed = Array.from(p.object_part.data.subarray(from, from + POSE_SIZE));
      const dynamic = deformations ? take(POSE_SIZE) : fixed.map(() => 0);
      return pose_matrix(fixed.map((value, i) => value + dynamic[i]), similarity);
    });
    const vote_presence = share.map((logit) => sigmoid(capsule) * sigmoid(logit));
    return {
      pose,
      presence: Math.max(...vote_presence),
      object_part,
      votes: object_part.map((inner) => compose(pose, inner)),
      vote_scale: share.map((_, m) => (scale ? softplus(scale[m] + 0.5) + MIN_VOTE_SCALE : 1)),
      vote_presence,
    };
  });
}

// Parts and objects of an image, in the form of encoding.js.
export function encode(model, image) {
  const { params, options } = model;
  const parts = part_encoder(image, model);
  for (const part of parts) part.colour = colour(part.features, model);
  const presence = parts.map((part) => part.presence);
  const is_framed = options.object_encoder.frame === "parts";
  const frame = is_framed ? frame_of(parts) : IDENTITY;
  const poses = parts.map((part) => (is_framed ? compose(invert(frame), part.pose) : part.pose));
  const rows = parts.map((part, m) => {
    const { channels } = model;
    const coloured = template(model, m).map(
      (x, i) => in_colour(x, i % channels, part.colour, channels),
    );
    return [...poses[m], 1 - part.presence, ...part.features, ...coloured];
  });
  const objects = object_decoder(object_encoder(rows, presence, model), model);
  const { posterior, winner } = route(
    poses,
    objects.map((object) => object.votes),
    objects.map((object) => object.vote_scale),
    objects.map((object) => object.vote_presence),
    options.normalize_mixing,
  );
  if (is_framed) for (const object of objects) object.pose = compose(frame, object.pose);
  for (const [m, part] of parts.entries()) {
    const k = winner[m];
    const { object_part, vote_presence } = objects[k];
    Object.assign(part, { winner: k, certainty: posterior[m][k] });
    Object.assign(part, { inner: object_part[m], vote_presence: vote_presence[m] });
  }
  const probe = softmax(dense(objects.map((object) => object.presence), params.prior_probe));
  return { parts, objects, mass: posterior_mass(posterior), probe };
}

// Parts at some poses, ready for `draw`.
export function warp_parts(model, encoding, poses) {
  return poses.map((pose, m) => warp_part(model, m, pose, encoding.parts[m].colour));
}
