// Poses, as in scae_jax/math/geometry.py: a pose is six numbers, a 2x3 matrix read row by row.

const MIN_SCALE = 0.01;
const MIN_DETERMINANT = 1e-12;
const FAR = 1e4;
const MIN_FRAME = 0.05;

export const sigmoid = (x) => 1 / (1 + Math.exp(-x));
export const IDENTITY = [1, 0, 0, 0, 1, 0];

// Affine pose from six unconstrained numbers.
export function affine_matrix(raw, min_scale = MIN_SCALE) {
  const range = 1 + MIN_SCALE - min_scale;
  const scale_x = min_scale + range * sigmoid(raw[0]);
  const scale_y = min_scale + range * sigmoid(raw[1]);
  const cos = Math.cos(2 * Math.PI * raw[2]);
  const sin = Math.sin(2 * Math.PI * raw[2]);
  const [shear, shift_x, shift_y] = [3, 4, 5].map((i) => Math.tanh(5 * raw[i]));
  return [
    scale_x * cos + shear * scale_y * sin, -scale_x * sin + shear * scale_y * cos, shift_x,
    scale_y * sin, scale_y * cos, shift_y,
  ];
}

// Similarity pose from the same numbers; the second scale and the shear are not read.
export function similarity_matrix(raw) {
  const scale = MIN_SCALE + sigmoid(raw[0]);
  const cos = scale * Math.cos(2 * Math.PI * raw[2]);
  const sin = scale * Math.sin(2 * Math.PI * raw[2]);
  return [cos, -sin, Math.tanh(5 * raw[4]), sin, cos, Math.tanh(5 * raw[5])];
}

export function pose_matrix(raw, similarity) {
  return similarity ? similarity_matrix(raw) : affine_matrix(raw);
}

// The pose that applies `inner` first. A vote is compose(object_viewer, object_part).
export function compose([a, b, c, d, e, f], [p, q, r, s, t, u]) {
  return [
    a * p + b * s, a * q + b * t, a * r + b * u + c,
    d * p + e * s, d * q + e * t, d * r + e * u + f,
  ];
}

export const determinant = ([a, b, , c, d]) => a * d - b * c;

// The pose that undoes this one; of a collapsed one, a pose that takes every point far away.
export function invert(pose) {
  const [a, b, x, c, d, y] = pose;
  const det = determinant(pose);
  if (Math.abs(det) < MIN_DETERMINANT) return [0, 0, FAR, 0, 0, FAR];
  return [d / det, -b / det, (b * y - d * x) / det, -c / det, a / det, (c * x - a * y) / det];
}

// The frame of present parts, to which poses may be relative: their centre and twice the spread of
// their squares.
export function frame_of(parts) {
  const total = Math.max(parts.reduce((sum, { presence }) => sum + presence, 0), 1e-6);
  const mean = (of) => parts.reduce((sum, part) => sum + (part.presence / total) * of(part.pose), 0);
  const [x, y] = [mean((pose) => pose[2]), mean((pose) => pose[5])];
  const variance = mean(([a, b, p, c, d, q]) =>
    (p - x) ** 2 + (q - y) ** 2 + (a ** 2 + b ** 2 + c ** 2 + d ** 2) / 3);
  const scale = 2 * Math.sqrt(Math.max(variance, (MIN_FRAME / 2) ** 2));
  return [scale, 0, x, 0, scale, y];
}

export function transform_point([a, b, x, c, d, y], [u, v]) {
  return [a * u + b * v + x, c * u + d * v + y];
}

// What the page's sliders say: a pose is changed about its own origin, first stretched along the
// image's axes, then sheared, then turned, and its origin is moved.

// The changed pose. `turn` is in degrees, counter-clockwise as one sees the picture.
export function change_pose(pose, { turn, scale_x, scale_y, shear, move_x, move_y }) {
  const angle = (-turn * Math.PI) / 180;
  const cos = Math.cos(angle);
  const sin = Math.sin(angle);
  const linear = [
    scale_x * cos, scale_y * (shear * cos - sin), 0,
    scale_x * sin, scale_y * (shear * sin + cos), 0,
  ];
  const changed = compose(linear, [pose[0], pose[1], 0, pose[3], pose[4], 0]);
  changed[2] = pose[2] + move_x;
  changed[5] = pose[5] + move_y;
  return changed;
}

// The inverse: what change_pose was given, from the pose before and after.
export function change_between(before, after) {
  const undo = invert([before[0], before[1], 0, before[3], before[4], 0]);
  const [a, b, , c, d] = compose([after[0], after[1], 0, after[3], after[4], 0], undo);
  const angle = Math.atan2(c, a);
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  const scale_y = d * cos - b * sin;
  return {
    turn: (-angle * 180) / Math.PI,
    scale_x: Math.hypot(a, c),
    scale_y,
    shear: (b * cos + d * sin) / scale_y,
    move_x: after[2] - before[2],
    move_y: after[5] - before[5],
  };
}
