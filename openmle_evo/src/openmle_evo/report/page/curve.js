/* The score of every valid attempt, and the best so far. Better is up, whichever way the metric runs. */

let curveAxis = "attempts";

/* Utilities from the best down to where ordinary attempts end, so that one terrible score does not flatten the rest. */
function robustRange(utilities) {
  const sorted = [...utilities].sort((a, b) => a - b);
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const top = sorted[sorted.length - 1];
  const reach = Math.max(1.5 * (at(0.75) - at(0.25)), top - at(0.25));
  const low = reach > 0 ? Math.max(sorted[0], at(0.25) - reach) : sorted[0];
  const pad = (top - low || Math.abs(top) || 1) * 0.06;
  return { low: low - pad, high: top + pad, bottom: low };
}

/* A chart's frame: scales, grid, tick labels, axis titles. */
function frame(svg, { width, height, x, y, xTitle, yTitle, yLabel = short }) {
  const left = 12 + 7 * Math.max(...y.ticks.map((tick) => yLabel(tick).length));
  const box = { left, right: width - 14, top: 26, bottom: height - 40 };
  const toX = (value) => box.left + ((value - x.low) / (x.high - x.low || 1)) * (box.right - box.left);
  const toY = (value) => box.bottom - ((value - y.low) / (y.high - y.low || 1)) * (box.bottom - box.top);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(
    draw("g", { class: "axes", "aria-hidden": "true" },
      y.ticks.map((tick) => [
        draw("line", { x1: box.left, x2: box.right, y1: toY(tick), y2: toY(tick) }),
        draw("text", { x: box.left - 6, y: toY(tick) + 4, "text-anchor": "end" }, yLabel(tick)),
      ]),
      x.ticks.map((tick) => draw("text", { x: toX(tick), y: box.bottom + 17, "text-anchor": "middle" }, short(tick))),
      draw("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
      draw("text", { class: "axis-title", x: box.left, y: 12 }, yTitle),
      draw("text", { class: "axis-title", x: box.right, y: height - 6, "text-anchor": "end" }, xTitle)),
  );
  return { box, toX, toY };
}

/* Where each attempt stands on the axis of the whole search, in the order in which the attempts finished. */
function progressAxis(kind) {
  let spent = 0;
  return run.attempts.map((attempt, place) => {
    spent += attempt.sandbox_seconds;
    return kind === "seconds" ? spent : place + 1;
  });
}

function drawCurve() {
  const svg = byId("curve").querySelector("svg");
  const valid = run.attempts.filter((attempt) => attempt.utility !== null);
  emptyFigure(byId("curve"), valid.length ? null : run.attempts.length ? "No program has run to a score." : "No attempt has finished yet.");
  if (!valid.length) return;
  const width = Math.max(280, byId("curve").clientWidth);
  const height = width < 600 ? 260 : 340;
  const places = progressAxis(curveAxis);
  const range = robustRange(valid.map((attempt) => attempt.utility));
  const sign = metric.higher_is_better ? 1 : -1;
  const end = places[places.length - 1];
  const yTicks = ticks(...(sign > 0 ? [range.low, range.high] : [-range.high, -range.low]), 7);
  const { box, toX, toY } = frame(svg, {
    width, height,
    x: { low: 0, high: end * 1.02, ticks: ticks(0, end, width / 110, curveAxis === "attempts" ? 1 : 0) },
    y: { low: range.low, high: range.high, ticks: yTicks.map((tick) => sign * tick) },
    yLabel: (utility) => short(sign * utility),
    xTitle: curveAxis === "seconds" ? "sandbox seconds, added up" : "attempts finished",
    yTitle: `${selectedOn} ${metric.name} (better is up)`,
  });
  const inside = (utility) => Math.min(toY(Math.max(utility, range.low)), box.bottom);

  let path = "";
  let top = null;
  const dots = [];
  const bests = [];
  const size = valid.length > 250 ? 3.2 : 4.2;
  run.attempts.forEach((attempt, place) => {
    const x = toX(places[place]);
    if (attempt.utility === null) {
      dots.push(draw("line", { class: "failed", x1: x, x2: x, y1: box.bottom, y2: box.bottom + 5, "aria-hidden": "true" }));
      return;
    }
    if (attempt.new_best) {
      path += top === null ? `M${x} ${inside(attempt.utility)}` : `H${x}V${inside(attempt.utility)}`;
      top = attempt;
    }
    const below = attempt.utility < range.bottom;
    const y = below ? box.bottom - 9 : toY(attempt.utility);
    (attempt.new_best ? bests : dots).push(mark(attempt, x, y, attempt.new_best ? size * 1.25 : size, below ? "outside" : "",
      below ? draw("path", { class: "arrow", d: "M-3 8L0 11L3 8" }) : null));
  });
  svg.append(
    draw("g", null, dots),
    draw("path", { class: "best-line", d: `${path}H${box.right}`, "aria-hidden": "true" }),
    draw("g", null, bests),
    draw("text", { class: "best-label", x: box.right, y: toY(top.utility) - 9, "text-anchor": "end", "aria-hidden": "true" }, `best ${number(top.validation.value)}, attempt ${top.attempt}`),
  );
  const outside = valid.filter((attempt) => attempt.utility < range.bottom).length;
  const used = run.operators.filter((row) => row.valid);
  byId("curve-notes").replaceChildren(
    el("ul", { class: "legend" },
      used.map((row) => el("li", null, operatorLabel(row.operator))),
      el("li", null, el("span", { class: "key-line" }), "best so far"),
      valid.length < run.attempts.length && el("li", null, el("span", { class: "key-failed" }), "no score"),
      outside > 0 && el("li", { class: "outside-note" }, `\u2193 ${plural(outside, "worse score")} outside the range drawn, marked at its edge`)),
  );
  markSelected();
}

/* A clickable, focusable mark of an attempt. */
function mark(attempt, x, y, radius, extra, ...more) {
  return draw("g", {
    class: `mark op-${attempt.operator} ${attempt.new_best ? "new-best" : ""} ${extra}`,
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
    "data-attempt": attempt.attempt, role: "button", tabindex: -1, "aria-label": describe(attempt),
  }, draw("path", { class: "symbol", d: shape(attempt.operator, radius) }), more);
}

function curveControls() {
  const choice = (kind, label) =>
    el("label", null, el("input", { type: "radio", name: "curve-axis", value: kind, checked: kind === curveAxis, change: () => { curveAxis = kind; drawCurve(); } }), label);
  byId("curve-controls").append(el("fieldset", { class: "choice" }, el("legend", { class: "unseen" }, "Horizontal axis"), choice("attempts", "attempts"), choice("seconds", "sandbox seconds")));
}
