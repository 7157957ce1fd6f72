// From a model's metadata to a form's values, and back to tensors of a request.

// Variable dimensions start as 1.
export const startShape = (spec) => spec.shape.map((size) => (size < 0 ? 1 : size));

// One value that fills the whole tensor, as JSON.
export const startData = (spec) => ({ BYTES: '""', BOOL: "false" })[spec.datatype] ?? "0";

export const canBeJson = (spec) => spec.datatype !== "FP16" && spec.datatype !== "BF16";

export function parseShape(text) {
  const sizes = text.split(/[\s,x]+/).filter(Boolean).map(Number);
  if (!sizes.every((size) => Number.isInteger(size) && size >= 0)) throw new Error(`shape: expected whole numbers, got '${text}'`);
  return sizes;
}

// An input of a request. `data` is JSON: a list, flat or nested, or one value that is repeated.
export function tensor(spec, shapeText, dataText) {
  const shape = parseShape(shapeText);
  let data;
  try {
    data = JSON.parse(dataText);
  } catch {
    if (spec.datatype !== "BYTES") throw new Error(`${spec.name}: expected JSON, got '${dataText.slice(0, 60)}'`);
    data = dataText; // text without quotes is meant as it stands
  }
  if (!Array.isArray(data)) data = Array(shape.reduce((product, size) => product * size, 1)).fill(data);
  return { name: spec.name, datatype: spec.datatype, shape, data };
}

// The value of an output for people, cut where it is long.
export function shown(output, limit = 4000) {
  const text = JSON.stringify(output.data);
  return text.length > limit ? `${text.slice(0, limit)}… (${text.length} characters)` : text;
}
