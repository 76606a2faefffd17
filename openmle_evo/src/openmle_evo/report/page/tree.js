/* The tree of attempts, in a box that scrolls; zooming changes the drawing's size. */

const COLUMN = 34;
const ROW = 54;
const RADIUS = 12;
const tree = { scale: 1, width: 0, height: 0, fitted: false };

const FAILURES = {
  code_execution_error: "the program failed",
  timeout: "timeout",
  scoring_failed: "scoring failed",
  submission_missing: "no submission",
  code_missing: "no program in the reply",
  rejected: "refused by the reviewer",
};

function drawTree() {
  const svg = byId("tree").querySelector("svg");
  emptyFigure(byId("tree"), run.attempts.length ? null : "No attempt has finished yet.");
  if (!run.attempts.length) return;
  const { nodes, columns, rows } = placeTree(run.attempts);
  tree.width = columns * COLUMN + 20;
  tree.height = rows * ROW + 4;
  svg.setAttribute("viewBox", `0 0 ${tree.width} ${tree.height}`);
  const onPath = new Set(best ? ancestry(best) : []);
  for (const node of nodes.values()) {
    node.left = node.right = null;
    node.px = 10 + (node.x + 0.5) * COLUMN;
    node.py = 24 + node.depth * ROW;
  }
  const edges = [];
  const bestEdges = [];
  for (const node of nodes.values()) {
    node.attempt.parents.forEach((number, place) => {
      const parent = nodes.get(number);
      if (!parent) return;
      const isBest = place === 0 && onPath.has(node.attempt);
      (isBest ? bestEdges : edges).push(draw("path", { class: isBest ? "edge best" : place ? "edge second" : "edge", d: edgePath(parent, node) }));
    });
  }
  svg.replaceChildren(
    draw("g", { class: "edges", "aria-hidden": "true" }, edges, bestEdges),
    draw("g", null, [...nodes.values()].map(treeMark)),
  );
  treeControls();
  treeLegend();
  tree.nodes = nodes;
  if (tree.fitted) setScale(tree.scale);
  else fitTree();
  markSelected();
}

function edgePath(from, to) {
  const middle = (from.py + to.py) / 2;
  return `M${from.px} ${from.py}C${from.px} ${middle} ${to.px} ${middle} ${to.px} ${to.py}`;
}

function treeMark(node) {
  const { attempt } = node;
  const look = attempt.rank === null ? `failure ${attempt.outcome}` : `fifth-${fifth(attempt)}`;
  return mark(attempt, node.px, node.py, RADIUS * 0.92, `${look} ${attempt === best ? "best" : ""}`,
    draw("text", { y: attempt.operator === "debug" ? 5.5 : 3.2, "text-anchor": "middle", "aria-hidden": "true" }, String(attempt.attempt)));
}

function treeLegend() {
  const seen = run.outcomes.filter((row) => row.attempts && FAILURES[row.outcome]);
  const swatch = (look) => draw("svg", { class: "icon", viewBox: "-8 -8 16 16", width: 14, height: 14, "aria-hidden": "true" }, draw("g", { class: `mark ${look}` }, draw("path", { class: "symbol", d: shape("draft", 6) })));
  byId("tree-notes").replaceChildren(
    el("ul", { class: "legend" },
      run.operators.filter((row) => row.attempts).map((row) => el("li", null, el("span", { class: "plain" }, icon(row.operator)), row.operator)),
      validCount > 0 && el("li", null, [0, 1, 2, 3, 4].map((place) => swatch(`fifth-${place}`)), "best to worst score, by fifths"),
      seen.map((row) => el("li", null, swatch(`failure ${row.outcome}`), FAILURES[row.outcome])),
      best && el("li", null, el("span", { class: "key-line" }), "line of the best program"),
      run.attempts.some((attempt) => attempt.parents.length > 1) && el("li", null, el("span", { class: "key-dashed" }), "second parent of a crossover")),
    el("p", null, "Numbers are attempts. Drag or scroll to move, Ctrl and the wheel to zoom; with the keyboard, arrow keys go to the parent, the first child, the previous and the next attempt."),
  );
}

function setScale(scale, about) {
  const box = byId("tree");
  const svg = box.querySelector("svg");
  const anchor = about ?? { x: box.clientWidth / 2, y: box.clientHeight / 2 };
  const ratio = Math.min(3, Math.max(0.1, scale)) / tree.scale;
  const left = (box.scrollLeft + anchor.x) * ratio - anchor.x;
  const top = (box.scrollTop + anchor.y) * ratio - anchor.y;
  tree.scale *= ratio;
  svg.setAttribute("width", Math.round(tree.width * tree.scale));
  svg.setAttribute("height", Math.round(tree.height * tree.scale));
  box.classList.toggle("far", tree.scale < 0.7);
  box.scrollLeft = left;
  box.scrollTop = top;
}

/* The whole tree where it stays legible, else as much as stays so, with the best program in sight. */
function fitTree() {
  const box = byId("tree");
  setScale(Math.max(0.5, Math.min(1, box.clientWidth / tree.width, 560 / tree.height)));
  tree.fitted = true;
  if (best) showInTree(best.attempt);
}

function showInTree(number) {
  const node = tree.nodes?.get(number);
  if (!node) return;
  const box = byId("tree");
  const [x, y] = [node.px * tree.scale, node.py * tree.scale];
  const margin = 40;
  if (x < box.scrollLeft + margin || x > box.scrollLeft + box.clientWidth - margin) box.scrollLeft = x - box.clientWidth / 2;
  if (y < box.scrollTop + margin || y > box.scrollTop + box.clientHeight - margin) box.scrollTop = y - box.clientHeight / 2;
}

function treeControls() {
  const box = byId("tree");
  const button = (label, name, action) => el("button", { type: "button", "aria-label": name, title: name, click: action }, label);
  byId("tree-controls").replaceChildren(
    button("\u2212", "Zoom out", () => setScale(tree.scale / 1.3)),
    button("+", "Zoom in", () => setScale(tree.scale * 1.3)),
    button("Whole", "Show the whole tree", () => { setScale(Math.min(1, box.clientWidth / tree.width, box.clientHeight / tree.height)); }),
    best ? button("Best", "Go to the best program", () => { if (tree.scale < 0.8) setScale(1); showInTree(best.attempt); }) : "",
  );
  if (!tree.fitted) moveByPointer(box);
}

function moveByPointer(box) {
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const place = box.getBoundingClientRect();
    setScale(tree.scale * Math.exp(-event.deltaY / 300), { x: event.clientX - place.left, y: event.clientY - place.top });
  }, { passive: false });
  dragToScroll(box);
}

/* With a mouse; touch scrolls by itself. A press that does not move stays a click. */
function dragToScroll(box) {
  let from = null;
  box.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0) from = { x: event.clientX + box.scrollLeft, y: event.clientY + box.scrollTop, moved: false };
  });
  box.addEventListener("pointermove", (event) => {
    if (!from || event.buttons !== 1) { from = null; return; }
    const [left, top] = [from.x - event.clientX, from.y - event.clientY];
    if (!from.moved && Math.hypot(left - box.scrollLeft, top - box.scrollTop) < 4) return;
    if (!from.moved) box.setPointerCapture(event.pointerId);
    from.moved = true;
    box.scrollLeft = left;
    box.scrollTop = top;
  });
  box.addEventListener("pointerup", () => { from = null; });
}
