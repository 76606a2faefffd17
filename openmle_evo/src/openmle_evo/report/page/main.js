/* The head of the page, the key figures, and what happens on a click or a key. */

function head() {
  const { manifest, final } = run;
  const title = manifest.title || manifest.task;
  const state = final
    ? `Finished ${moment(final.finished_at)}`
    : `${{ true: "Running", false: "Stopped" }[run.running] ?? "Unfinished"}: ${plural(run.attempts.length, "attempt")} finished${run.under_way ? `, ${run.under_way} under way` : ""}${run.last_result_at ? `, the last result ${moment(run.last_result_at)}` : ""}`;
  const items = [
    ["Metric", `${metric.name}, ${metric.higher_is_better ? "higher" : "lower"} is better`],
    ["Protocol", manifest.final_package ? `${manifest.protocol}, graded on ${manifest.final_package.name}` : manifest.protocol],
    ["Policy", [manifest.policy, ...run.models.filter((model) => model !== manifest.policy)].join(", ")],
    ["Isolation", run.isolations.length ? run.isolations.join(", ") : manifest.isolation],
    ["Run", manifest.run_id],
    ["Started", moment(manifest.created_at)],
  ];
  return [
    el("p", { class: "kind" }, "OpenMLE search run"),
    el("h1", null, visible(title)),
    el("p", { class: `state ${final ? "finished" : "unfinished"}` }, state),
    el("dl", { class: "about" }, items.map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, visible(value))))),
  ];
}

function figure(name, value, ...notes) {
  return el("div", { class: "key" }, el("h3", null, name), el("p", { class: "value" }, value), notes.map((note) => (note ? el("p", { class: "note" }, note) : null)));
}

function keyFigures() {
  const { final, usage } = run;
  const total = run.attempts.length;
  return [
    best
      ? figure(`Best ${selectedOn}`, number(best.validation.value), [link(best.attempt, `attempt ${best.attempt}`), `, ${best.operator}`])
      : figure(`Best ${selectedOn}`, "none", total ? "no valid program" : "no attempt has finished yet"),
    testFigure(final),
    standingFigure(final),
    figure("Valid programs", total ? percent(validCount / total) : "\u2013", `${count(validCount)} of ${plural(total, "attempt")}`),
    figure("Wall clock", seconds(run.seconds.wall), `${seconds(run.seconds.sandbox)} sandbox`, `${seconds(run.seconds.model)} model`, `${seconds(run.seconds.queue)} queue`),
    figure(`Tokens${usage.estimated ? " (estimated)" : ""}`, count(usage.prompt_tokens + usage.completion_tokens), `${count(usage.prompt_tokens)} prompt`, `${count(usage.completion_tokens)} completion`, run.cost_usd === null ? null : `$${run.cost_usd.toFixed(2)}`),
  ];
}

function testFigure(final) {
  if (!final) return figure("Test", "not yet", "not graded on test yet");
  const sample = final.sample_submission ? `sample submission: ${number(final.sample_submission.value)}` : "the metric refuses the sample submission";
  const parts = final.blend?.chosen ? final.blend.parts : [];
  const named = parts.length
    ? ["blend of ", parts.flatMap((part, place) => [place ? ", " : "", link(part.attempt, `attempt ${part.attempt}`), ` (${percent(part.weight)})`])]
    : [link(final.attempt, `attempt ${final.attempt}`)];
  const program = [...named, `: ${number(final.validation.value)} on validation`];
  if (!final.test) return figure("Test", "failed", program, visible(final.message), sample, ...considered(final));
  return figure("Test", number(final.test.value), program, sample, ...considered(final));
}

/* Between what the final choice was, a note for each program. */
function considered(final) {
  const programs = final.considered.map((each) => [
    "considered ", link(each.attempt, `attempt ${each.attempt}`), `: ${number(each.first.value)} in the search`,
    each.repeats.length ? `; of ${plural(each.repeats.length, "repeat")} mean ${each.mean ? number(each.mean.value) : "none, one failed"}; best ${number(each.best.value)}` : "",
  ]);
  const blend = final.blend && !final.blend.chosen ? [`no blend: ${visible(final.blend.message)}`] : [];
  return [...programs, ...blend];
}

function standingFigure(final) {
  const name = "Leaderboard";
  if (!final) return figure(name, "\u2013", "not graded on test yet");
  if (!final.standing) return figure(name, "\u2013", final.test ? "no leaderboard" : "no test score to place");
  const { rank, entries, fraction_beaten: beaten, medal, made_by: maker } = final.standing;
  const by = maker === "machine" ? "reference leaderboard made by machine: scores of baselines, not of people" : `reference leaderboard made by ${visible(maker || "an unknown hand")}`;
  return figure(name, `${rank} of ${entries}`, [`beats ${percent(beaten)}`, medal ? `, ${visible(medal)} medal` : ", no medal"], by);
}

function notices() {
  const { shortened_programs: programs, shortened_logs: logs, limits } = run;
  const unknown = run.attempts.filter((attempt) => attempt.review === "unknown").length;
  return [
    trusting ? el("p", { class: "notice" }, "Protocol self_valid: parents and the submitted program were chosen by the scores that programs print themselves. Wherever this page ranks programs, it goes by those scores; only the test score is measured.") : null,
    unknown ? el("p", { class: "notice" }, `${plural(unknown, "program")} ran without a verdict of the reviewer.`) : null,
    logs ? el("p", { class: "notice" }, `To keep the page small, ${plural(logs, "log")} ${logs === 1 ? "is" : "are"} shortened to the first and last ${count(limits.log)} characters. The run's store has all that was kept.`) : null,
    programs ? el("p", { class: "notice" }, `To keep the page small, ${plural(programs, "program")} ${programs === 1 ? "is" : "are"} shortened to the first ${count(limits.program)} characters. The run's store has them whole.`) : null,
  ].filter(Boolean);
}

function provenance() {
  return [
    el("p", null, trusting ? "Selection used the scores that programs print themselves, and no others. The test half of the hidden answers was " : "Validation scores are measured by the grader on the validation half of the hidden answers; selection used these scores and no others. The test half was ",
      run.final ? "graded once, at the end, by a separate call" : "not touched yet: it is graded once, at the end, by a separate call", trusting ? ", for the one program that they chose." : ", for the one program that validation chose. Scores that programs print themselves are shown and not used."),
    el("p", null, `Made ${moment(run.made_at)} from the run's directory by OpenMLE ${visible(run.manifest.openmle_version)}. ${run.live ? "It follows the directory as it grows." : "The page holds all it shows and loads nothing."}`),
  ];
}

/* Shows the selection in the curve, the tree and the table, and lets Tab reach one mark of each figure. */
function markSelected() {
  for (const node of document.querySelectorAll(".mark.selected")) node.classList.remove("selected");
  for (const svg of document.querySelectorAll(".figure > svg")) {
    const mark = selected && svg.querySelector(`[data-attempt="${selected.attempt}"]`);
    mark?.classList.add("selected");
    mark?.parentNode.append(mark);
    letTabReach(mark ?? svg.querySelector("[data-attempt]"));
  }
  document.querySelector("tr.chosen[data-row]")?.classList.remove("chosen");
  if (selected) document.querySelector(`[data-row="${selected.attempt}"]`)?.classList.add("chosen");
}

function letTabReach(mark) {
  mark?.ownerSVGElement.querySelector('[tabindex="0"]')?.setAttribute("tabindex", -1);
  mark?.setAttribute("tabindex", 0);
}

function goTo(attempt) {
  history.replaceState(null, "", `#attempt-${attempt.attempt}`);
  followLink();
}

function leave() {
  history.replaceState(null, "", location.href.split("#")[0]);
  closeDetail();
}

function followLink() {
  const found = /^#attempt-(\d+)$/.exec(location.hash);
  const attempt = found && byNumber.get(Number(found[1]));
  if (attempt) openDetail(attempt);
  else closeDetail();
}

const markAt = (event) => event.target.closest?.(".mark[data-attempt]");

function openMark(node) {
  goTo(byNumber.get(Number(node.dataset.attempt)));
  byId("detail-title").focus({ preventScroll: true });
}

/* Within a figure: left and right to its previous and next attempt, up and down through the tree. */
function moveWithin(node, key) {
  const svg = node.ownerSVGElement;
  const inTree = svg.parentNode.id === "tree";
  const shown = run.attempts.filter((attempt) => inTree || attempt.rank !== null);
  const attempt = byNumber.get(Number(node.dataset.attempt));
  const at = shown.indexOf(attempt);
  const next = {
    ArrowLeft: shown[at - 1]?.attempt, ArrowRight: shown[at + 1]?.attempt,
    ArrowUp: inTree ? attempt.parents[0] : undefined,
    ArrowDown: inTree ? childrenOf.get(attempt.attempt).find((child) => byNumber.get(child).parents[0] === attempt.attempt) : undefined,
  }[key];
  const target = next === undefined ? null : svg.querySelector(`[data-attempt="${next}"]`);
  if (!target) return;
  letTabReach(target);
  if (inTree) showInTree(next);
  target.focus({ preventScroll: true });
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const node = markAt(event);
  if (event.key === "Escape") { leave(); return; }
  if (node && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); openMark(node); return; }
  if (!event.key.startsWith("Arrow")) return;
  if (node) { event.preventDefault(); moveWithin(node, event.key); return; }
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || !selected || event.target.closest?.("input, .code, .log, .scroll")) return;
  const other = run.attempts[run.attempts.indexOf(selected) + step];
  if (!other) return;
  event.preventDefault();
  goTo(other);
}

function showTip(event) {
  const node = markAt(event);
  const tip = byId("tip");
  tip.hidden = !node;
  if (!node) return;
  tip.textContent = describe(byNumber.get(Number(node.dataset.attempt)));
  const place = node.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(place.left + place.width / 2 - tip.offsetWidth / 2, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${place.top > tip.offsetHeight + 12 ? place.top - tip.offsetHeight - 8 : place.bottom + 8}px`;
}

function show() {
  byId("top").replaceChildren(...head());
  byId("figures").replaceChildren(...keyFigures());
  byId("notices").replaceChildren(...notices());
  drawCurve();
  drawTree();
  byId("operators").replaceChildren(operatorsTable());
  byId("outcomes").replaceChildren(outcomesTable());
  byId("errors").replaceChildren(errorsTable());
  drawBudget();
  byId("attempts").replaceChildren(attemptsTable());
  byId("settings").replaceChildren(...settingsTable());
  byId("provenance").replaceChildren(...provenance());
}

curveControls();
show();

document.addEventListener("click", (event) => { const node = markAt(event); if (node) openMark(node); });
document.addEventListener("keydown", onKey);
document.addEventListener("mouseover", showTip);
document.addEventListener("focusin", showTip);
document.addEventListener("scroll", () => { byId("tip").hidden = true; }, { capture: true, passive: true });
window.addEventListener("hashchange", followLink);
let drawnWidth = byId("curve").clientWidth;
new ResizeObserver(() => {
  if (byId("curve").clientWidth === drawnWidth) return;
  drawnWidth = byId("curve").clientWidth;
  drawCurve();
  drawBudget();
}).observe(byId("curve"));
followLink();
