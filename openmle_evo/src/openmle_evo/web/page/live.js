/* Follows a run that is served: asks for what is new, and draws it; fetches prompts and replies when somebody looks. */

const EVERY = 1500;
let live = run.live;

function nameLink() {
  if (run.alone) return null;
  return el("p", { class: "up" }, el("a", { href: "/" }, "All runs"));
}

/* Attempts stay the same objects, so that what is open stays open. */
function merge(news) {
  const known = run.attempts;
  news.attempts = news.attempts.map((attempt, place) => (place < known.length ? Object.assign(known[place], attempt) : attempt));
  live = news.live;
  take(news);
}

function redraw() {
  const focused = document.activeElement?.closest?.(".mark[data-attempt]");
  const place = focused && `#${focused.ownerSVGElement.parentNode.id} [data-attempt="${focused.dataset.attempt}"]`;
  show();
  byId("top").prepend(...[nameLink()].filter(Boolean));
  if (place) document.querySelector(place)?.focus({ preventScroll: true });
}

async function follow() {
  const question = new URLSearchParams({ name: live.name, have: run.attempts.length, version: live.version });
  try {
    const answer = await fetch(`/run.json?${question}`);
    if (answer.status === 200) { merge(await answer.json()); redraw(); }
    byId("lost").hidden = answer.ok;
  } catch {
    byId("lost").hidden = false;
  }
  setTimeout(follow, EVERY);
}

/* A fold whose content is fetched when it is opened first. */
function lazyFold(key, title, load) {
  const box = el("div", null, el("p", { class: "quiet" }, "Loading."));
  const part = fold(key, title, false, box);
  let asked = false;
  const fill = async () => {
    if (!part.open || asked) return;
    asked = true;
    box.replaceChildren(...(await load()));
  };
  part.addEventListener("toggle", fill);
  return part;
}

const exchanges = new Map();

function exchangeOf(attempt) {
  if (!exchanges.has(attempt.attempt)) {
    const question = new URLSearchParams({ name: live.name, attempt: attempt.attempt });
    exchanges.set(attempt.attempt, fetch(`/exchange.json?${question}`).then((answer) => (answer.ok ? answer.json() : null), () => null));
  }
  return exchanges.get(attempt.attempt);
}

/* The sections of a prompt; a heading inside a fenced block is none. */
function sections(text) {
  const found = [{ title: "", lines: [] }];
  let fence = null;
  for (const line of text.split("\n")) {
    const mark = /^(`{3,})/.exec(line)?.[1];
    if (mark && fence === null) fence = mark;
    else if (mark && mark.length >= fence.length && line.trim() === mark) fence = null;
    const heading = fence === null && /^# (.+)$/.exec(line);
    if (heading) found.push({ title: heading[1], lines: [] });
    else found[found.length - 1].lines.push(line);
  }
  return found.map((each) => ({ title: each.title, text: each.lines.join("\n").trim() })).filter((each) => each.text);
}

const textBox = (text, name) => el("div", { class: "log", role: "region", "aria-label": name, tabindex: 0 }, el("pre", null, visible(text)));
const missing = [el("p", { class: "quiet" }, "It was not kept.")];

async function promptParts(attempt) {
  const exchange = await exchangeOf(attempt);
  if (!exchange) return missing;
  return exchange.messages.flatMap((message) =>
    sections(message.content).map(({ title, text }) => {
      const name = title || `message of the ${message.role}`;
      const memory = title === "Earlier attempts" ? " (memory)" : "";
      return el("details", { class: "section", open: memory !== "" },
        el("summary", null, `${visible(name)}${memory}`, el("span", { class: "quiet" }, ` ${plural(text.length, "character")}`)), textBox(text, name));
    }));
}

async function replyParts(attempt) {
  const exchange = await exchangeOf(attempt);
  if (!exchange) return missing;
  return [
    exchange.reasoning ? el("details", { class: "section" }, el("summary", null, "Reasoning"), textBox(exchange.reasoning, "Reasoning")) : null,
    textBox(exchange.reply, `Reply for attempt ${attempt.attempt}`),
  ].filter(Boolean);
}

moreParts = (attempt) => [
  lazyFold("prompt", "Prompt", () => promptParts(attempt)),
  lazyFold("reply", "Reply", () => replyParts(attempt)),
];

byId("page").prepend(el("p", { id: "lost", class: "notice", role: "status", hidden: true }, "The server does not answer; what is shown may be old."));
byId("top").prepend(...[nameLink()].filter(Boolean));
followLink();
setTimeout(follow, EVERY);
