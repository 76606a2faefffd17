/* The panel with everything about one attempt. */

let selected = null;
let opener = null;
const folded = new Map();
/* What a page that is served can show beside what it holds. */
let moreParts = () => [];

function openDetail(attempt) {
  const panel = byId("detail");
  if (panel.hidden) opener = document.activeElement;
  selected = attempt;
  panel.hidden = false;
  document.body.classList.add("with-detail");
  panel.replaceChildren(...detailParts(attempt));
  panel.scrollTop = 0;
  markSelected();
  showInTree(attempt.attempt);
}

function closeDetail() {
  if (byId("detail").hidden) return;
  const last = selected.attempt;
  selected = null;
  byId("detail").hidden = true;
  byId("detail").replaceChildren();
  document.body.classList.remove("with-detail");
  markSelected();
  /* The curve is drawn anew when the panel makes it narrower, so the mark that was clicked may be gone. */
  const back = opener?.isConnected ? opener : document.querySelector(`#curve [data-attempt="${last}"]`);
  back?.focus({ preventScroll: true });
  opener = null;
}

function detailParts(attempt) {
  const at = run.attempts.indexOf(attempt);
  const step = (by, label, name) => {
    const other = run.attempts[at + by];
    return el("button", { type: "button", "aria-label": name, title: name, disabled: !other, click: () => goTo(other) }, label);
  };
  const children = childrenOf.get(attempt.attempt);
  return [
    el("div", { class: "detail-head" },
      el("h2", { id: "detail-title", tabindex: -1 }, icon(attempt.operator), `Attempt ${attempt.attempt}`),
      el("div", { class: "controls" }, step(-1, "\u2190", "Previous attempt"), step(1, "\u2192", "Next attempt"),
        el("button", { type: "button", "aria-label": "Close", title: "Close (Esc)", click: leave }, "\u00d7"))),
    el("p", { class: "origin" }, origin(attempt), children.length ? [" Parent of ", links(children), "."] : null),
    outcomeBox(attempt),
    el("dl", { class: "facts" }, facts(attempt)),
    fold("why", "Why selected", true, whySelected(attempt)),
    attempt.plan ? fold("plan", "Plan", true, el("p", { class: "prose" }, visible(attempt.plan))) : null,
    ...changes(attempt),
    fold("program", "Program", true, program(attempt)),
    fold("log", "Log", attempt.rank === null, log(attempt)),
    ...moreParts(attempt),
  ].filter((part) => part !== null);
}

function origin(attempt) {
  if (attempt.operator === "draft") return "A draft, written from nothing.";
  const deed = { improve: "Improves attempt ", debug: "Mends attempt ", crossover: "Joins attempts " }[attempt.operator];
  return [deed, links(attempt.parents), "."];
}

function outcomeBox(attempt) {
  if (attempt.validation) {
    return el("p", { class: "outcome good" },
      el("strong", null, number(attempt.validation.value)), ` ${metric.name} ${trusting ? "by its own account" : "on validation"}, rank ${attempt.rank} of ${validCount}`,
      attempt === best ? ", the best of the run" : attempt.new_best ? ", the best so far when it finished" : "", ".");
  }
  return el("div", { class: "outcome bad" },
    el("p", null, el("strong", null, sentence(words(attempt.outcome))), attempt.error_signature ? [" ", el("code", null, visible(attempt.error_signature))] : null),
    attempt.message ? el("p", { class: "prose" }, visible(attempt.message)) : null);
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1);

function facts(attempt) {
  const usage = attempt.usage;
  const rows = [
    ["Outcome", words(attempt.outcome)],
    ["Gain over best parent", attempt.gain === null ? null : attempt.gain === 0 ? "none" : `${number(Math.abs(attempt.gain), 4)} ${attempt.gain > 0 ? "better" : "worse"}`],
    ["Self-reported", attempt.self_reported ? `${number(attempt.self_reported.value)} (printed by the program; ${trusting ? "what selection uses" : "not used"})` : null],
    ["Validation", attempt.measured ? `${number(attempt.measured.value)} (measured; not used)` : null],
    ["Withheld", attempt.withheld ? `${number(attempt.withheld.value)} on validation (its review is unknown, so it does not count)` : null],
    ["Review", attempt.review],
    ["Test", attempt.test ? number(attempt.test.value) : null],
    ["Method family", attempt.family],
    ["Tokens", `${count(usage.prompt_tokens)} prompt + ${count(usage.completion_tokens)} completion${usage.estimated ? " (estimated)" : ""}`],
    ["Cost", attempt.cost_usd === null ? null : `$${attempt.cost_usd.toFixed(4)}`],
    ["Seconds", `${seconds(attempt.sandbox_seconds)} sandbox, ${seconds(attempt.model_seconds)} model, ${seconds(attempt.queue_seconds)} queue`],
    ["Policy", attempt.model || null],
    ["Isolation", attempt.isolation || null],
    ["Finished", moment(attempt.finished_at)],
    ["Program id", attempt.program_id],
  ];
  return rows.filter(([, value]) => value !== null).map(([name, value]) => [el("dt", null, name), el("dd", null, visible(value))]);
}

/* A part that folds; once somebody has folded or opened it, it stays so from attempt to attempt. */
function fold(key, title, open, ...content) {
  const summary = el("summary", { click: () => folded.set(key, summary.parentNode.open) }, title);
  return el("details", { open: folded.has(key) ? !folded.get(key) : open }, summary, content);
}

function whySelected(attempt) {
  const { reason, temperature, candidates, provenance } = attempt.selection;
  const weights = run.manifest.settings.selection;
  const parts = [el("p", null, sentence(visible(reason || "no reason recorded")), temperature === null ? "." : `, at temperature ${temperature}.`, provenance === "self_reported" ? " Decided by self-reported scores." : null)];
  if (!candidates.length) return [...parts, el("p", { class: "quiet" }, "No candidates were weighed.")];
  const columns = ["score", "gain", "novelty", "utility", "probability"];
  parts.push(scrolling(el("table", { class: "compact" },
    el("caption", { class: "unseen" }, "Candidates, the likeliest first"),
    el("thead", null, el("tr", null, el("th", { scope: "col" }, "candidate"), columns.map((name) => el("th", { scope: "col", class: "number" }, name)))),
    el("tbody", null, candidates.map((candidate) => {
      const chosen = attempt.parents.includes(candidate.attempt);
      return el("tr", { class: chosen ? "chosen" : "" },
        el("td", null, byNumber.has(candidate.attempt) ? link(candidate.attempt) : "a fresh draft", chosen ? " chosen" : ""),
        columns.map((name) => el("td", { class: "number" }, name === "probability" ? percent(candidate[name]) : candidate[name].toFixed(3))));
    })))));
  const weighed = weights ? ` Weights: ${Object.entries(weights).filter(([name]) => name !== "temperature").map(([name, value]) => `${name} ${value}`).join(", ")}.` : "";
  parts.push(el("p", { class: "quiet" }, `Score and gain are scaled to 0\u20131 over the candidates; novelty falls with the number of programs of the same method family; utility is their weighted sum, and the probability follows from it by softmax.${visible(weighed)}`));
  return parts;
}

/* Against each parent, the first one unfolded; nothing for a draft, or where there is no program to compare. */
function changes(attempt) {
  return attempt.parents.map((number) => byNumber.get(number)).filter((parent) => parent && parent.source && attempt.source).map((parent, place) => {
    const title = `Changes against attempt ${parent.attempt}`;
    return fold(`changes-${place}`, title, place === 0, diffBlock(parent.source, attempt.source, title));
  });
}

function program(attempt) {
  if (!attempt.source) return el("p", { class: "quiet" }, "The reply held no program.");
  return [codeBlock(attempt.source, `Program of attempt ${attempt.attempt}`), attempt.program_cut ? el("p", { class: "quiet" }, `The page leaves out the last ${plural(attempt.program_cut, "character")}; the run's store has them.`) : null];
}

function log(attempt) {
  if (!attempt.log_head && !attempt.log_tail) return el("p", { class: "quiet" }, "Nothing was printed.");
  const gaps = [
    attempt.truncated_bytes ? `${plural(attempt.truncated_bytes, "byte")} of the log were not kept` : null,
    attempt.log_cut ? `${plural(attempt.log_cut, "character")} are left out of this page; the run's store has them` : null,
  ].filter(Boolean);
  return el("div", { class: "log", role: "region", "aria-label": `Log of attempt ${attempt.attempt}`, tabindex: 0 },
    el("pre", null, visible(attempt.log_head)),
    gaps.length || attempt.log_tail ? el("p", { class: "gap" }, gaps.length ? gaps.join("; ") : "\u2026") : null,
    attempt.log_tail ? el("pre", null, visible(attempt.log_tail)) : null);
}
