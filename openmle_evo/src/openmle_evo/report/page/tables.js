/* The tables, the budget's two charts, and the words at the top and the bottom. */

const scrolling = (table) => el("div", { class: "scroll" }, table);

/* A table of rows; a column says what its cell shows and, where it can be sorted by, the value that sorts it. */
function table(caption, columns, rows, { sortable = false, rowOf = () => ({}) } = {}) {
  const lines = new Map(rows.map((row) => [row, el("tr", rowOf(row), columns.map((column) => el("td", { class: column.number ? "number" : null }, column.cell(row))))]));
  const body = el("tbody", null, ...lines.values());
  const heads = columns.map((column) => el("th", { scope: "col", class: column.number ? "number" : null }));
  const order = { column: null, turn: 1 };
  const sortBy = (column, head) => {
    order.turn = order.column === column ? -order.turn : 1;
    order.column = column;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order.turn > 0 ? "ascending" : "descending");
    const compare = (a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return order.turn * (typeof x === "number" ? x - y : x.localeCompare(y));
    };
    body.append(...[...rows].sort(compare).map((row) => lines.get(row)));
  };
  columns.forEach((column, place) => {
    heads[place].append(sortable ? el("button", { type: "button", click: () => sortBy(column, heads[place]) }, column.name) : column.name);
  });
  return scrolling(el("table", null, el("caption", { class: "unseen" }, caption), el("thead", null, el("tr", null, heads)), body));
}

/* An outcome in words, with the error's signature where that says more. */
function ending(attempt) {
  const more = attempt.error_signature && attempt.error_signature !== attempt.outcome;
  return words(attempt.outcome) + (more ? `: ${visible(attempt.error_signature)}` : "");
}

function attemptsTable() {
  if (!run.attempts.length) return el("p", { class: "empty" }, "No attempt has finished yet.");
  const numeric = (name, value, cell) => ({ name, number: true, value, cell: cell ?? ((row) => (value(row) === null ? "\u2013" : count(value(row)))) });
  const text = (name, value, cell) => ({ name, value, cell: cell ?? ((row) => value(row) ?? "\u2013") });
  return table("All attempts", [
    numeric("attempt", (row) => row.attempt, (row) => link(row.attempt)),
    text("operator", (row) => row.operator, (row) => operatorLabel(row.operator)),
    numeric("parents", (row) => row.parents[0] ?? null, (row) => (row.parents.length ? links(row.parents) : "\u2013")),
    numeric(`${selectedOn} ${metric.name}`, (row) => row.validation?.value ?? null, (row) => (row.validation ? [number(row.validation.value), row.new_best ? el("span", { class: "badge" }, "new best") : null] : "\u2013")),
    numeric("rank", (row) => row.rank),
    numeric("gain", (row) => row.gain, (row) => (row.gain === null ? "\u2013" : signed(row.gain))),
    text("family", (row) => row.family),
    text("outcome", ending),
    numeric("tokens", tokens),
    numeric("sandbox s", (row) => row.sandbox_seconds, (row) => row.sandbox_seconds.toFixed(2)),
    numeric("model s", (row) => row.model_seconds, (row) => row.model_seconds.toFixed(2)),
  ], run.attempts, { sortable: true, rowOf: (row) => ({ "data-row": row.attempt }) });
}

function operatorsTable() {
  const share = (part, whole) => (whole ? `${count(part)} (${percent(part / whole)})` : count(part));
  return table("What each operator did", [
    { name: "operator", cell: (row) => operatorLabel(row.operator) },
    { name: "attempts", number: true, cell: (row) => count(row.attempts) },
    { name: "valid", number: true, cell: (row) => share(row.valid, row.attempts) },
    { name: "new bests", number: true, cell: (row) => count(row.new_bests) },
    { name: "prompt tokens", number: true, cell: (row) => count(row.prompt_tokens) },
    { name: "completion tokens", number: true, cell: (row) => count(row.completion_tokens) },
    { name: "sandbox", number: true, cell: (row) => seconds(row.sandbox_seconds) },
    { name: "queue", number: true, cell: (row) => seconds(row.queue_seconds) },
  ], run.operators);
}

function outcomesTable() {
  const seen = run.outcomes.filter((row) => row.attempts);
  if (!seen.length) return el("p", { class: "empty" }, "No attempt has finished yet.");
  return table("How the attempts ended", [
    { name: "outcome", cell: (row) => words(row.outcome) },
    { name: "attempts", number: true, cell: (row) => count(row.attempts) },
    { name: "share", number: true, cell: (row) => percent(row.attempts / run.attempts.length) },
  ], seen);
}

function errorsTable() {
  if (!run.errors.length) return el("p", { class: "empty" }, run.attempts.length ? "No attempt left an error signature." : "No attempt has finished yet.");
  const some = (numbers) => [links(numbers.slice(0, 5)), numbers.length > 5 ? ` and ${numbers.length - 5} more` : null];
  return table("Error signatures, the most frequent first", [
    { name: "signature", cell: (row) => el("code", null, visible(row.signature)) },
    { name: "outcome", cell: (row) => words(row.outcome) },
    { name: "count", number: true, cell: (row) => count(row.attempts.length) },
    { name: "attempts", cell: (row) => some(row.attempts) },
  ], run.errors);
}

function drawBudget() {
  const box = byId("budget");
  if (!run.attempts.length) {
    box.replaceChildren(el("p", { class: "empty" }, "Nothing has been spent yet."));
    return;
  }
  const chart = draw("svg", { role: "img", "aria-label": `Sandbox seconds, added up over the attempts: ${seconds(run.seconds.sandbox)} in the end` });
  const holder = el("div", { class: "figure" }, chart);
  const queue = run.seconds.queue > 0 ? `Programs waited ${seconds(run.seconds.queue)} in the queue in all, at most ${seconds(Math.max(...run.attempts.map((attempt) => attempt.queue_seconds)))} at once.` : "No program waited in a queue.";
  box.replaceChildren(
    el("div", null, el("h3", null, "Sandbox seconds"), holder, el("p", { class: "notes" }, queue)),
    el("div", null, el("h3", null, `Tokens by operator${run.usage.estimated ? " (estimated)" : ""}`), tokenBars()));
  const spent = progressAxis("seconds");
  const [width, end, most] = [Math.max(260, holder.clientWidth), run.attempts.length, spent[spent.length - 1] || 1];
  const { toX, toY } = frame(chart, {
    width, height: 200, xTitle: "attempts finished", yTitle: "seconds, added up",
    x: { low: 0, high: end, ticks: ticks(0, end, width / 110, 1) }, y: { low: 0, high: most * 1.05, ticks: ticks(0, most, 4) },
  });
  chart.append(draw("path", { class: "spent", d: `M${toX(0)} ${toY(0)}${spent.map((value, place) => `L${toX(place + 1).toFixed(1)} ${toY(value).toFixed(1)}`).join("")}` }));
}

function tokenBars() {
  const rows = run.operators.filter((row) => row.attempts);
  const most = Math.max(1, ...rows.map((row) => row.tokens));
  const bar = (kind, value) => {
    const part = el("span", { class: kind });
    part.style.width = `${(100 * value) / most}%`;
    return part;
  };
  return [
    el("dl", { class: "bars" }, rows.map((row) => [
      el("dt", null, operatorLabel(row.operator)),
      el("dd", null, el("span", { class: "bar", "aria-hidden": "true" }, bar("prompt", row.prompt_tokens), bar("completion", row.completion_tokens)), el("span", { class: "amount" }, count(row.tokens))),
    ])),
    el("ul", { class: "legend" }, el("li", null, el("span", { class: "key-box prompt" }), `prompt, ${count(run.usage.prompt_tokens)}`), el("li", null, el("span", { class: "key-box completion" }), `completion, ${count(run.usage.completion_tokens)}`)),
  ];
}

/* Nested settings as dotted names. */
function flat(settings, prefix = "") {
  return Object.entries(settings).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, `${prefix}${name}.`) : [[prefix + name, value]]);
}

function settingsTable() {
  const { manifest } = run;
  const said = [
    ["task", manifest.task], ["package", manifest.package], ["policy", manifest.policy], ["executor", manifest.executor],
    ["isolation", manifest.isolation], ["openmle version", manifest.openmle_version], ["created", moment(manifest.created_at)],
  ];
  const settings = flat(manifest.settings).map(([name, value]) => [name, value === null ? "not set" : typeof value === "string" ? value : JSON.stringify(value)]);
  const row = ([name, value]) => [el("dt", null, visible(name)), el("dd", null, visible(value) || "(empty)")];
  return [el("dl", { class: "settings" }, said.map(row)), settings.length ? el("details", null, el("summary", null, `${plural(settings.length, "setting")} of the search`), el("dl", { class: "settings" }, settings.map(row))) : el("p", { class: "quiet" }, "No settings were recorded.")];
}
