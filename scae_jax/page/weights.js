// What the page carries: bytes, deflated and in base64; parameters among them as float16.

export async function inflate(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The number whose float16 has these bits.
export function from_float16(bits) {
  const sign = bits >> 15 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = (bits & 1023) / 1024;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction);
}

// A tree of { shape, data } from all low bytes, then all high bytes, of arrays one after another;
// `shapes` has the shape of each by its path, as "part_decoder/templates".
export function read_params(bytes, shapes) {
  const count = bytes.length / 2;
  const numbers = new Float32Array(count);
  for (let i = 0; i < count; i++) numbers[i] = from_float16(bytes[i] + 256 * bytes[count + i]);
  const tree = {};
  let start = 0;
  for (const [path, shape] of Object.entries(shapes)) {
    const size = shape.reduce((product, side) => product * side, 1);
    const names = path.split("/");
    const last = names.pop();
    const branch = names.reduce((at, name) => (at[name] ??= {}), tree);
    branch[last] = { shape, data: numbers.subarray(start, (start += size)) };
  }
  return tree;
}
