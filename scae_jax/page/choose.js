// Where images come from: the strip of held-out images, their map, and the pen.

import { at, css, element, name_tag, paint_picture, set } from "./pictures.js";

const PEN_RADIUS = 1.3; // pixels of the image
const PEN_EDGE = 0.7; // pixels over which ink fades, inside and outside of the radius
const DOT = 0.012; // of the map's side

// A strip of images as radio buttons, and a map of them; `choose(n)` is called with a number.
export function show_test_images(images, facts, choose) {
  const { canvas, channels, labels, class_names } = facts;
  const colours = facts.label_colours.map(css);
  for (const [n, image] of images.entries()) {
    const input = element("input", { type: "radio", name: "image", value: n });
    input.setAttribute("aria-label", `Image ${n}, label ${class_names[labels[n]]}`);
    input.addEventListener("change", () => choose(n));
    const thumbnail = element("canvas");
    paint_picture(thumbnail, canvas, image, channels);
    at("strip").append(element("label", {}, input, thumbnail));
  }
  const map = at("map");
  map.setAttribute("viewBox", "-0.04 -0.04 1.08 1.08");
  for (const [n, [x, y]] of facts.map.entries()) {
    map.append(element("circle", { cx: x, cy: 1 - y, fill: colours[labels[n]] }));
  }
  map.addEventListener("click", (event) => {
    const { x, y } = point_of(event, map);
    const distances = facts.map.map(([u, v]) => Math.hypot(u - x, 1 - v - y));
    choose(distances.indexOf(Math.min(...distances)));
  });
  class_names.forEach((name, i) => {
    const dot = element("span", { class: "dot", style: `background: ${colours[i]}` });
    at("legend").append(element("span", {}, dot, name_tag(name)), " ");
  });
}

// Marks image n in strip and map; null for none.
export function mark_test_image(n) {
  const strip = at("strip");
  for (const [i, label] of strip.querySelectorAll("label").entries()) {
    label.querySelector("input").checked = i === n;
    if (i !== n) continue;
    const [from, to] = [strip.scrollLeft, strip.scrollLeft + strip.clientWidth];
    const [left, right] = [label.offsetLeft, label.offsetLeft + label.offsetWidth];
    if (left < from || right > to) strip.scrollLeft = (left + right - strip.clientWidth) / 2;
  }
  for (const [i, circle] of at("map").querySelectorAll("circle").entries()) {
    set(circle, { r: i === n ? 2 * DOT : DOT, class: i === n ? "chosen" : "" });
  }
}

// Where a pointer is in the coordinates of an SVG.
export function point_of(event, svg) {
  return new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
}

// How much ink a stroke from p to q leaves at a point, in [0, 1].
export function ink([x, y], [px, py], [qx, qy]) {
  const length = (qx - px) ** 2 + (qy - py) ** 2;
  const along = length ? ((x - px) * (qx - px) + (y - py) * (qy - py)) / length : 0;
  const t = Math.min(Math.max(along, 0), 1);
  const distance = Math.hypot(x - px - t * (qx - px), y - py - t * (qy - py));
  return Math.min(Math.max((PEN_RADIUS + PEN_EDGE - distance) / (2 * PEN_EDGE), 0), 1);
}

// The image with a stroke on it; whole steps of 1/255, as images of data sets have.
export function stroke(image, side, channels, p, q) {
  return image.map((value, i) => {
    const pixel = Math.floor(i / channels);
    const mark = ink([pixel % side, Math.floor(pixel / side)], p, q);
    return Math.max(value, Math.round(255 * mark) / 255);
  });
}

// Calls `draw(p, q)` for each piece of a stroke over a canvas of side x side pixels. A finger scrolls
// unless `fingers_draw()`.
export function listen_to_pen(canvas, side, draw, fingers_draw) {
  let last = null;
  const position = (event) => {
    const box = canvas.getBoundingClientRect();
    const along = (distance, length) => (distance / length) * side - 0.5;
    return [along(event.clientX - box.left, box.width), along(event.clientY - box.top, box.height)];
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" && !fingers_draw()) return;
    canvas.setPointerCapture(event.pointerId);
    last = position(event);
    draw(last, last);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    const next = position(event);
    draw(last, next);
    last = next;
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, () => (last = null));
  }
}
