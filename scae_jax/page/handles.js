// Handles of one object's pose on the picture that the objects draw, in coordinates of the image.

import { point_of } from "./choose.js";
import { determinant, transform_point } from "./geometry.js";
import { css, element } from "./pictures.js";

const REACH = 0.7; // of an axis of the object, where its handle is
const MIN_AREA = 1e-3; // a drag that makes an object smaller than this is ignored
const CORNERS = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
const PLACES = { move: [0, 0], turn: [REACH, 0], shear: [0, REACH] };
const NAMES = { move: "Move", turn: "Turn and scale", shear: "Shear and stretch" };

// The pose after one of its handles is dragged to a point.
export function dragged(pose, handle, [x, y]) {
  const [a, b, shift_x, c, d, shift_y] = pose;
  if (handle === "move") return [a, b, x, c, d, y];
  const [u, v] = [(x - shift_x) / REACH, (y - shift_y) / REACH];
  if (handle === "shear") return [a, u, shift_x, c, v, shift_y];
  // The similarity that takes the first axis, (a, c), to (u, v): a quotient of complex numbers.
  const size = a * a + c * c;
  const [real, imaginary] = [(u * a + v * c) / size, (v * a - u * c) / size];
  const turned = (p, q) => [real * p - imaginary * q, imaginary * p + real * q];
  const [[a2, c2], [b2, d2]] = [turned(a, c), turned(b, d)];
  return [a2, b2, shift_x, c2, d2, shift_y];
}

// Handles that stay, so that focus does; `pose()` is the present one, `change(pose)` takes a new one.
export function make_handles(svg, canvas, pose, change) {
  const pixel = 2 / (canvas - 1);
  const start = -1 - pixel / 2;
  svg.setAttribute("viewBox", `${start} ${start} ${canvas * pixel} ${canvas * pixel}`);
  const drag = (handle, point) => {
    const next = dragged(pose(), handle, point);
    if (Math.abs(determinant(next)) > MIN_AREA) change(next);
  };
  svg.append(element("line"), element("line"));
  for (const [name, place] of Object.entries(PLACES)) {
    const knob = name === "shear"
      ? element("rect", { width: 0.09, height: 0.09, class: "handle" })
      : element("circle", { r: 0.05, class: "handle" });
    const reach = element("circle", { r: 0.13, class: "reach", tabindex: 0, role: "button" });
    reach.dataset.handle = knob.dataset.handle = name;
    reach.addEventListener("pointerdown", (event) => {
      event.stopPropagation();
      reach.setPointerCapture(event.pointerId);
    });
    reach.addEventListener("pointermove", (event) => {
      if (!reach.hasPointerCapture(event.pointerId)) return;
      const { x, y } = point_of(event, svg);
      drag(name, [x, y]);
    });
    reach.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (!(event.key in steps)) return;
      event.preventDefault();
      const [x, y] = transform_point(pose(), place);
      drag(name, [x + pixel * steps[event.key][0], y + pixel * steps[event.key][1]]);
    });
    svg.append(knob, reach);
  }
}

// Puts the handles where the pose says, and frames around the poses of some parts.
export function show_handles(svg, number, pose, colour, frames) {
  const origin = transform_point(pose, PLACES.move);
  const ends = [PLACES.turn, PLACES.shear].map((place) => transform_point(pose, place));
  svg.querySelectorAll("line").forEach((line, i) => {
    const [[x1, y1], [x2, y2]] = [origin, ends[i]];
    for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) line.setAttribute(name, value);
    line.setAttribute("stroke", css(colour));
    line.setAttribute("stroke-width", 2);
  });
  for (const shape of svg.querySelectorAll("[data-handle]")) {
    const [x, y] = transform_point(pose, PLACES[shape.dataset.handle]);
    const centre = shape.tagName === "rect" ? { x: x - 0.045, y: y - 0.045 } : { cx: x, cy: y };
    for (const [name, value] of Object.entries(centre)) shape.setAttribute(name, value);
    shape.setAttribute("aria-label", `${NAMES[shape.dataset.handle]} object ${number}`);
  }
  svg.querySelectorAll("polygon").forEach((frame) => frame.remove());
  for (const { part_pose, is_chosen } of frames) {
    const points = CORNERS.map((corner) => transform_point(part_pose, corner).join()).join(" ");
    const width = is_chosen ? 2.5 : 1;
    svg.prepend(element("polygon", { points, stroke: css(colour), "stroke-width": width }));
  }
}
