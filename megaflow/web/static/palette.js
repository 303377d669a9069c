// Colours and patterns of workers. The colours are those of Okabe and Ito, which colour-blind people can tell apart.
// Patterns differ between workers with similar numbers, so the grid is readable without colours.

const LIGHT = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a800", "#6a5acd"];
const DARK = ["#3d9be0", "#f0ab1f", "#1fb892", "#e092bf", "#7cc9f5", "#ee7733", "#e8dc5a", "#9d8cf5"];

export const PATTERNS = [
  () => false,
  (x, y) => (x + y) % 6 < 2,
  (x, y) => x % 5 > 2 && y % 5 > 2,
  (x, y) => y % 5 < 2,
  (x, y) => (x - y + 6000) % 6 < 2,
  (x) => x % 5 < 2,
  (x, y) => (x + y) % 7 < 1 || (x - y + 7000) % 7 < 1,
  (x, y) => (x % 8 < 4) === (y % 8 < 4),
];

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function colourOf(worker) { return (isDark() ? DARK : LIGHT)[worker % 8]; }
export function patternOf(worker) { return PATTERNS[(worker + Math.floor(worker / 8)) % 8]; }

export function rgb(hex) { return [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16)); }

export function cssColour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

export function mix(a, b, share) { return a.map((each, place) => Math.round(each + (b[place] - each) * share)); }

// A small picture of a worker's colour and pattern.
export function swatch(worker) {
  const canvas = document.createElement("canvas");
  const size = 14 * Math.ceil(devicePixelRatio || 1);
  canvas.width = canvas.height = size;
  canvas.className = "swatch";
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  const base = rgb(colourOf(worker));
  const line = patternColour(base);
  const inPattern = patternOf(worker);
  for (let y = 0; y < size; y += 1) {
    for (let x = 0; x < size; x += 1) {
      image.data.set([...(inPattern(x, y) ? line : base), 255], 4 * (y * size + x));
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

export function patternColour(base) { return mix(base, isDark() ? [0, 0, 0] : [255, 255, 255], 0.36); }
