"use strict";

const embedded = JSON.parse(document.getElementById("run-data").textContent);

const SVG = document.querySelector("svg").namespaceURI;
const byId = (id) => document.getElementById(id);

/* Whatever is put into the page goes through these two: strings become text nodes, never markup. */
const el = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/* Control characters and direction marks, which could make a text look like another one, are shown as themselves. */
function visible(text) {
  return text
    .replace(/\r\n?/g, "\n")
    .replace(/[\x00-\x08\x0b\x0c\x0e-\x1f]/g, (mark) => String.fromCharCode(0x2400 + mark.charCodeAt(0)))
    .replace(/[\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (mark) => `\u27e8U+${mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

const words = (label) => label.replaceAll("_", " ");
const count = (number) => number.toLocaleString("en-US");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const moment = (iso) => iso.replace("T", " ").replace(/\.\d+/, "").replace("Z", " UTC");

function number(value, digits = 6) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e9 || size < 1e-4 ? value.toExponential(digits - 2) : size >= 10 ** (digits - 1) ? value.toFixed(0) : value.toPrecision(digits);
}

const signed = (value) => (value > 0 ? "+" : value < 0 ? "\u2212" : "\u00b1") + number(Math.abs(value), 4);

function seconds(value) {
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${String(Math.floor(value % 60)).padStart(2, "0")} s`;
  return `${Math.floor(value / 3600)} h ${String(Math.floor((value % 3600) / 60)).padStart(2, "0")} min`;
}

/* Operators are told apart by shape as well as by colour. */
function shape(operator, radius) {
  const points = {
    improve: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
    debug: [[0, -1.25], [1.2, 0.85], [-1.2, 0.85]],
    crossover: [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  }[operator];
  if (!points) return `M${radius} 0A${radius} ${radius} 0 1 1 ${-radius} 0A${radius} ${radius} 0 1 1 ${radius} 0Z`;
  return `M${points.map(([x, y]) => `${(x * radius).toFixed(2)} ${(y * radius).toFixed(2)}`).join("L")}Z`;
}

const icon = (operator) =>
  draw("svg", { class: `icon op-${operator}`, viewBox: "-8 -8 16 16", width: 14, height: 14, "aria-hidden": "true" }, draw("path", { d: shape(operator, 5.6) }));

const operatorLabel = (operator) => el("span", { class: "operator" }, icon(operator), operator);

/* Round numbers, about `wanted` of them, within a range; at least `least` apart. */
function ticks(low, high, wanted, least = 0) {
  const raw = Math.max((high - low) / Math.max(wanted, 1), least);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) found.push(Number((place * step).toPrecision(12)));
  return found;
}

const short = (value) => (Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-4) ? value.toExponential(1) : String(Number(value.toPrecision(6))));

/* Says in a figure why there is nothing to draw; without a reason, makes room for the drawing. */
function emptyFigure(box, reason) {
  box.querySelector(".empty")?.remove();
  box.querySelector("svg").toggleAttribute("hidden", Boolean(reason));
  if (reason) box.append(el("p", { class: "empty" }, reason));
}
