// Handles of one object's pose on the picture that the objects draw, in coordinates of the image.

import { point_of } from "./choose.js";
import { determinant, transform_point } from "./geometry.js";
import { css, element, set } from "./pictures.js";

// A handle is this far along its axis of the object, and a little farther: short axes have handles
// apart from each other, too.
const REACH = 0.6;
const FARTHER = 0.15;
const MIN_LENGTH = 0.05; // of an axis
const MIN_AREA = 1e-3; // a drag that makes an object smaller than this is ignored
const SQUARE = 0.09; // side of the square handle
const CORNERS = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
// The last one lies on top.
const NAMES = { turn: "Turn and scale", shear: "Shear and stretch", move: "Move" };

// Where a handle of a pose is.
export function place_of([a, b, x, c, d, y], handle) {
  if (handle === "move") return [x, y];
  const [u, v] = handle === "turn" ? [a, c] : [b, d];
  const factor = REACH + FARTHER / Math.hypot(u, v);
  return [x + factor * u, y + factor * v];
}

// The pose after one of its handles is dragged to a point.
export function dragged([a, b, shift_x, c, d, shift_y], handle, [x, y]) {
  if (handle === "move") return [a, b, x, c, d, y];
  const distance = Math.hypot(x - shift_x, y - shift_y);
  const length = Math.max((distance - FARTHER) / REACH, MIN_LENGTH);
  const [u, v] = [x - shift_x, y - shift_y].map((along) => (along * length) / distance);
  if (handle === "shear") return [a, u, shift_x, c, v, shift_y];
  // The similarity that takes the first axis, (a, c), to (u, v): a quotient of complex numbers.
  const size = a * a + c * c;
  const [real, imaginary] = [(u * a + v * c) / size, (v * a - u * c) / size];
  return [u, real * b - imaginary * d, shift_x, v, imaginary * b + real * d, shift_y];
}

// Lets an SVG have the coordinates of an image: -1 and 1 at the centres of the outermost pixels.
export function image_coordinates(svg, canvas) {
  const pixel = 2 / (canvas - 1);
  const start = -1 - pixel / 2;
  svg.setAttribute("viewBox", `${start} ${start} ${canvas * pixel} ${canvas * pixel}`);
}

// Handles that stay, so that focus does; `pose()` is the present one, `change` takes a new one.
export function make_handles(svg, canvas, pose, change) {
  const pixel = 2 / (canvas - 1);
  const drag = (handle, point) => {
    const next = dragged(pose(), handle, point);
    const [area, before] = [next, pose()].map((matrix) => Math.abs(determinant(matrix)));
    if (area > Math.min(MIN_AREA, 0.999 * before)) change(next); // moves and turns keep the area
  };
  svg.append(element("line"), element("line"));
  for (const name of Object.keys(NAMES)) {
    const knob = name === "shear"
      ? element("rect", { width: SQUARE, height: SQUARE, class: "handle" })
      : element("circle", { r: 0.05, class: "handle" });
    const reach = element("circle", { r: 0.11, class: "reach", tabindex: 0, role: "button" });
    reach.dataset.handle = knob.dataset.handle = name;
    reach.addEventListener("pointerdown", (event) => reach.setPointerCapture(event.pointerId));
    reach.addEventListener("click", (event) => event.stopPropagation()); // chooses no object
    reach.addEventListener("pointermove", (event) => {
      if (!reach.hasPointerCapture(event.pointerId)) return;
      const { x, y } = point_of(event, svg);
      drag(name, [x, y]);
    });
    reach.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (!(event.key in steps)) return;
      event.preventDefault();
      const [x, y] = place_of(pose(), name);
      drag(name, [x + pixel * steps[event.key][0], y + pixel * steps[event.key][1]]);
    });
    svg.append(knob, reach);
  }
}

// Puts the handles where the pose says.
export function show_handles(svg, number, pose, colour) {
  const origin = place_of(pose, "move");
  const ends = [place_of(pose, "turn"), place_of(pose, "shear")];
  svg.querySelectorAll("line").forEach((line, i) => {
    const [[x1, y1], [x2, y2]] = [origin, ends[i]];
    set(line, { x1, y1, x2, y2, stroke: css(colour) });
  });
  for (const shape of svg.querySelectorAll("[data-handle]")) {
    const [x, y] = place_of(pose, shape.dataset.handle);
    const is_square = shape.tagName === "rect";
    set(shape, is_square ? { x: x - SQUARE / 2, y: y - SQUARE / 2 } : { cx: x, cy: y });
    shape.setAttribute("aria-label", `${NAMES[shape.dataset.handle]} object ${number}`);
  }
}

// A frame around one part's template, and dots at the centres of some parts.
export function show_marks(svg, frame, centred, colour) {
  const points = CORNERS.map((corner) => transform_point(frame.pose, corner).join()).join(" ");
  const dots = centred.map((pose) => place_of(pose, "move"));
  svg.replaceChildren(
    element("polygon", { points, stroke: css(frame.colour) }),
    ...dots.map(([cx, cy]) => element("circle", { cx, cy, r: 0.028, fill: css(colour) })),
  );
}
