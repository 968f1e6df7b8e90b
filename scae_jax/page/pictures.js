// Arrays as pictures on a canvas, and elements of the page.

const to_byte = (value) => Math.round(255 * Math.min(Math.max(value, 0), 1));

// Paints a square; `channel(i, c)` is red, green or blue of pixel i, in [0, 1].
export function paint(canvas, side, channel) {
  if (canvas.width !== side || canvas.height !== side) canvas.width = canvas.height = side;
  const pixels = new ImageData(side, side);
  for (let i = 0; i < side * side; i++) {
    for (let c = 0; c < 3; c++) pixels.data[4 * i + c] = to_byte(channel(i, c));
    pixels.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

// A picture [side, side, channels]: three channels are red, green and blue, any other number grey.
export function paint_picture(canvas, side, picture, channels) {
  if (channels === 3) paint(canvas, side, (i, c) => picture[3 * i + c]);
  else paint(canvas, side, (i) => brightness(picture, channels, i));
}

function brightness(picture, channels, i) {
  let sum = 0;
  for (let c = 0; c < channels; c++) sum += picture[i * channels + c];
  return sum / channels;
}

// Each part's share of a pixel, times the pixel's brightness, in the colour of the part.
export function paint_owners(canvas, side, { picture, share }, channels, part_colours) {
  const num_parts = part_colours.length;
  paint(canvas, side, (i, c) => {
    const bright = Math.min(Math.max(...picture.subarray(i * channels, (i + 1) * channels)), 1);
    return part_colours.reduce(
      (sum, colour, m) => sum + (bright * share[i * num_parts + m] * colour[c]) / 255, 0,
    );
  });
}

export const css = (colour) => `rgb(${colour.join(" ")})`;

export const at = (id) => document.getElementById(id);

export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

// A name that may be long, in any script: on one line, cut by an ellipsis where there is no room.
export const name_tag = (name) => element("bdi", { class: "name", title: name }, name);

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["circle", "line", "polygon", "rect"]);

// An element with attributes, with children, which may be text.
export function element(tag, attributes = {}, ...children) {
  const made = SVG_TAGS.has(tag)
    ? document.createElementNS(SVG, tag)
    : document.createElement(tag);
  set(made, attributes);
  made.append(...children);
  return made;
}
