/* Programs as numbered lines, and the difference of two programs. */

const PYTHON = new RegExp(
  [
    /(?<comment>#[^\n]*)/,
    /(?<string>\b[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))/,
    /(?<keyword>\b(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|None|True|False)\b)/,
    /(?<number>\b\d[\w.]*\b)/,
    /(?<name>\b[A-Za-z_]\w*\b)/,
  ].map((part) => part.source).join("|"),
  "g",
);

/* Each line as a list of text nodes and spans. */
function coloured(text) {
  const lines = [[]];
  const add = (piece, kind) => {
    piece.split("\n").forEach((part, place) => {
      if (place) lines.push([]);
      if (part) lines[lines.length - 1].push(kind ? el("span", { class: kind }, part) : part);
    });
  };
  let done = 0;
  for (const match of text.matchAll(PYTHON)) {
    add(text.slice(done, match.index));
    const kind = ["comment", "string", "keyword", "number"].find((name) => match.groups[name] !== undefined);
    add(match[0], kind);
    done = match.index + match[0].length;
  }
  add(text.slice(done));
  return lines;
}

function codeBlock(text, label) {
  const lines = coloured(visible(text).replace(/\n$/, ""));
  return el("div", { class: "code", role: "region", "aria-label": label, tabindex: 0 },
    lines.map((pieces, place) => el("div", { class: "line" }, el("span", { class: "at", "aria-hidden": "true", "data-line": place + 1 }), el("code", null, pieces.length ? pieces : "\n"))));
}

/* Lines kept, removed and added, by the longest common subsequence; null when the texts are too long for that. */
function lineDiff(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  const a = before.slice(start, before.length - end);
  const b = after.slice(start, after.length - end);
  if (a.length * b.length > 8e6) return null;
  const wide = b.length + 1;
  const common = new Uint16Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * wide + j] = a[i] === b[j] ? common[(i + 1) * wide + j + 1] + 1 : Math.max(common[(i + 1) * wide + j], common[i * wide + j + 1]);
    }
  }
  const rows = before.slice(0, start).map((text) => ({ kind: " ", text }));
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { rows.push({ kind: " ", text: a[i] }); i += 1; j += 1; }
    else if (i < a.length && (j === b.length || common[(i + 1) * wide + j] >= common[i * wide + j + 1])) { rows.push({ kind: "-", text: a[i] }); i += 1; }
    else { rows.push({ kind: "+", text: b[j] }); j += 1; }
  }
  rows.push(...before.slice(before.length - end).map((text) => ({ kind: " ", text })));
  return rows;
}

const CONTEXT = 3;

/* The changed lines with a few around them. */
function diffBlock(before, after, label) {
  const split = (text) => visible(text).replace(/\n$/, "").split("\n");
  const rows = lineDiff(split(before), split(after));
  if (rows === null) return el("p", null, "The two programs are too long to compare line by line.");
  if (rows.every((row) => row.kind === " ")) return el("p", null, "The program is the same, line for line.");
  const near = new Set();
  rows.forEach((row, place) => {
    if (row.kind !== " ") for (let by = -CONTEXT; by <= CONTEXT; by += 1) near.add(place + by);
  });
  const shown = [];
  let [old, fresh, left] = [0, 0, 0];
  const gap = () => {
    if (left) shown.push(el("div", { class: "line gap" }, el("code", null, `${plural(left, "line")} unchanged`)));
    left = 0;
  };
  rows.forEach((row, place) => {
    if (row.kind !== "+") old += 1;
    if (row.kind !== "-") fresh += 1;
    if (!near.has(place)) { left += 1; return; }
    gap();
    const kind = { "+": "added", "-": "removed", " ": "" }[row.kind];
    shown.push(el("div", { class: `line ${kind}` },
      el("span", { class: "at", "aria-hidden": "true", "data-line": row.kind === "-" ? old : fresh }),
      el("span", { class: "sign" }, row.kind), el("code", null, row.text || "\n")));
  });
  gap();
  return el("div", { class: "code diff", role: "region", "aria-label": label, tabindex: 0 }, shown);
}
