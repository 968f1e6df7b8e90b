// Arrays as pictures on a canvas, and elements of the page.

const to_byte = (value) => Math.round(255 * Math.min(Math.max(value, 0), 1));

// Paints a square; `rgb` gives the three numbers in [0, 1] of pixel i.
export function paint(canvas, side, rgb) {
  canvas.width = canvas.height = side;
  const pixels = new ImageData(side, side);
  for (let i = 0; i < side * side; i++) pixels.data.set([...rgb(i).map(to_byte), 255], 4 * i);
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

// A picture [side, side, channels]: three channels are red, green and blue, any other number grey.
export function paint_picture(canvas, side, picture, channels) {
  paint(canvas, side, (i) => {
    const pixel = picture.subarray(i * channels, (i + 1) * channels);
    if (channels === 3) return Array.from(pixel);
    const grey = pixel.reduce((sum, value) => sum + value, 0) / channels;
    return [grey, grey, grey];
  });
}

// Each part's share of a pixel, times the pixel's brightness, in the colour of the part.
export function paint_owners(canvas, side, { picture, share }, channels, part_colours) {
  const num_parts = part_colours.length;
  paint(canvas, side, (i) => {
    const pixel = picture.subarray(i * channels, (i + 1) * channels);
    const brightness = Math.min(Math.max(...pixel, 0), 1);
    const sum = [0, 0, 0];
    part_colours.forEach((colour, m) => {
      const weight = (brightness * share[i * num_parts + m]) / 255;
      colour.forEach((value, c) => (sum[c] += weight * value));
    });
    return sum;
  });
}

export const css = (colour) => `rgb(${colour.join(" ")})`;

export const at = (id) => document.getElementById(id);

export function set(one, attributes) {
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
}

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
