/* The list of runs, and the curves of those that are ticked, one figure for each task. */

const EVERY = 3000;
const LOOKS = 6;
let list = embedded;
let shownAs = JSON.stringify(embedded.runs);
const ticked = new Set(list.runs.map((each) => each.name));

function runsTable() {
  if (!list.runs.length) return el("p", { class: "empty" }, "There is no run in this folder yet.");
  const box = (row) => el("input", {
    type: "checkbox", checked: ticked.has(row.name), "aria-label": `Compare ${row.name}`, "data-name": row.name,
    change: (event) => { if (event.target.checked) ticked.add(row.name); else ticked.delete(row.name); drawCompared(); },
  });
  const value = (score) => (score === null ? "\u2013" : number(score));
  return table("Runs in the folder", [
    { name: "compare", cell: box, value: (row) => (ticked.has(row.name) ? 0 : 1) },
    { name: "task", value: (row) => row.title, cell: (row) => [el("a", { href: `/run?${new URLSearchParams({ name: row.name })}` }, visible(row.title)), el("div", { class: "where" }, visible(row.name))] },
    { name: "state", value: (row) => row.state, cell: (row) => el("span", { class: `state-${row.state}` }, row.state) },
    { name: "attempts", number: true, value: (row) => row.attempts, cell: (row) => (row.asked ? `${count(row.attempts)} of ${count(row.asked)}` : count(row.attempts)) },
    { name: "valid", number: true, value: (row) => row.valid, cell: (row) => count(row.valid) },
    { name: "best", number: true, value: (row) => row.best, cell: (row) => [value(row.best), el("div", { class: "where" }, visible(row.metric))] },
    { name: "test", number: true, value: (row) => row.test, cell: (row) => value(row.test) },
    { name: "policy", value: (row) => row.policy, cell: (row) => visible(row.policy) },
    { name: "sandbox", number: true, value: (row) => row.sandbox_seconds, cell: (row) => seconds(row.sandbox_seconds) },
    { name: "tokens", number: true, value: (row) => row.tokens, cell: (row) => count(row.tokens) },
    { name: "started", value: (row) => row.created_at, cell: (row) => moment(row.created_at) },
  ], list.runs, { sortable: true });
}

function drawCompared() {
  const chosen = list.runs.filter((each) => ticked.has(each.name) && each.curve.length);
  const tasks = [...new Set(chosen.map((each) => each.task))];
  const holders = tasks.map((task) => ({ task, runs: chosen.filter((each) => each.task === task), svg: draw("svg", { role: "img" }) }));
  byId("compared").replaceChildren(...(holders.length ? holders.map(({ runs, svg }) =>
    el("div", { class: "compared" }, el("h3", null, `${visible(runs[0].title)}: ${visible(runs[0].metric)}`), el("div", { class: "lines" }, svg),
      el("ul", { class: "legend" }, runs.map((each, place) => el("li", null, el("span", { class: `key-run ${look(place)}` }), visible(each.name), each.best === null ? "" : `: ${number(each.best)}`))))) :
    [el("p", { class: "empty" }, "No run with a score is ticked.")]));
  for (const { runs, svg } of holders) drawLines(svg, runs);
}

const look = (place) => `line-${place % LOOKS}${place >= LOOKS ? " dashed" : ""}`;

function drawLines(svg, runs) {
  const sign = runs[0].higher_is_better ? 1 : -1;
  const width = Math.max(280, svg.parentNode.clientWidth);
  const end = Math.max(...runs.map((each) => each.attempts));
  const utilities = runs.flatMap((each) => each.curve.map(([, score]) => sign * score));
  const range = robustRange(utilities);
  const yTicks = ticks(...(sign > 0 ? [range.low, range.high] : [-range.high, -range.low]), 6);
  const { box, toX, toY } = frame(svg, {
    width, height: 260, xTitle: "attempts finished", yTitle: "best so far (better is up)", yLabel: (utility) => short(sign * utility),
    x: { low: 0, high: end * 1.02, ticks: ticks(0, end, width / 110, 1) },
    y: { low: range.low, high: range.high, ticks: yTicks.map((tick) => sign * tick) },
  });
  svg.setAttribute("aria-label", `Best scores of ${plural(runs.length, "run")}: ${runs.map((each) => `${each.name} ${number(each.best)}`).join(", ")}`);
  runs.forEach((each, place) => {
    const at = ([attempt, score]) => [toX(attempt), Math.min(toY(Math.max(sign * score, range.low)), box.bottom)];
    const steps = each.curve.map(at).map(([x, y], step) => (step ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`));
    svg.append(draw("path", { class: look(place), d: `${steps.join("")}H${toX(each.attempts).toFixed(1)}`, "data-run": each.name }));
  });
}

function showList() {
  byId("top").replaceChildren(el("p", { class: "kind" }, "OpenMLE search runs"), el("h1", null, visible(list.folder)),
    el("p", { class: "state" }, `${plural(list.runs.length, "run")}, ${count(list.runs.filter((each) => each.state === "running").length)} running`));
  byId("notices").replaceChildren(...list.damaged.map((text) => el("p", { class: "notice" }, visible(text))));
  byId("runs").replaceChildren(runsTable());
  drawCompared();
}

async function followList() {
  try {
    const answer = await fetch("/runs.json");
    byId("lost").hidden = answer.ok;
    if (answer.ok) {
      const news = await answer.json();
      const text = JSON.stringify(news.runs);
      for (const each of news.runs) if (!list.runs.some((known) => known.name === each.name)) ticked.add(each.name);
      list = news;
      if (text !== shownAs) showList();
      shownAs = text;
    }
  } catch {
    byId("lost").hidden = false;
  }
  setTimeout(followList, EVERY);
}

showList();
let drawnAt = byId("compared").clientWidth;
new ResizeObserver(() => {
  if (byId("compared").clientWidth === drawnAt) return;
  drawnAt = byId("compared").clientWidth;
  drawCompared();
}).observe(byId("compared"));
setTimeout(followList, EVERY);
