// The status page. Everything that it shows came from programs that nobody trusts, or from their authors, so text
// reaches the page by textContent only, and characters that would hide or reorder text are made visible.
"use strict";

const API = "/api/v1";
const REFRESH_MS = 2000;
const PAGE_OF_JOBS = 50;
const MOST_JOBS = 1000;
const LOG_CHARACTERS = 1_000_000;
const ENDED = ["completed", "failed", "cancelled"];
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

const byId = (id) => document.getElementById(id);
const shownJobs = { limit: PAGE_OF_JOBS, query: new URLSearchParams() };
const rows = new Map();
let opened = null;
let refreshing = null;

function visible(text) {
  return String(text).replace(INVISIBLE, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function put(element, text, className = "") {
  const wanted = visible(text);
  if (element.textContent !== wanted) element.textContent = wanted;
  element.className = className;
}

function say(id, text) {
  put(byId(id), text);
  byId(id).hidden = !text;
}

class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem("key");
  if (key) headers["X-API-Key"] = key;
  const answer = await fetch(path, { cache: "no-store", ...options, headers });
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  // A late answer to an older key says nothing about the one that is there now.
  if (answer.status === 401 && key === sessionStorage.getItem("key")) {
    askForKey(key ? "The service does not know this key." : "");
  }
  throw new Refusal(answer.status, problem.error ?? `The service answered ${answer.status}.`);
}

function askForKey(why) {
  if (byId("ask").open) return;
  sessionStorage.removeItem("key");
  byId("key").value = "";
  if (why) put(byId("ask-why"), why);
  byId("ask").showModal();
}

byId("ask-form").addEventListener("submit", () => {
  sessionStorage.setItem("key", byId("key").value.trim());
  byId("key").value = "";
});

byId("ask").addEventListener("close", () => {
  refresh();
  openFromAddress();
});

byId("forget").addEventListener("click", () => {
  closeJob();
  rows.clear();
  for (const id of ["jobs", "workers", "figures"]) byId(id).replaceChildren();
  askForKey("");
});

async function refresh() {
  clearTimeout(refreshing);
  if (!byId("ask").open && !document.hidden) {
    try {
      const [status, jobs] = await Promise.all([ask(`${API}/workers/status`), ask(jobsPath())]);
      showStatus(await status.json());
      showJobs(await jobs.json());
      say("trouble", "");
    } catch (error) {
      say("trouble", error instanceof Refusal ? error.message : "The service does not answer.");
    }
  }
  clearTimeout(refreshing);
  refreshing = setTimeout(refresh, REFRESH_MS);
}

document.addEventListener("visibilitychange", refresh);

function jobsPath() {
  const query = new URLSearchParams(shownJobs.query);
  query.set("limit", shownJobs.limit);
  return `${API}/jobs?${query}`;
}

function showStatus(status) {
  const idle = status.workers_show.filter((worker) => worker.status === "idle").length;
  const figures = { Queued: status.queued, Running: status.running, "Idle workers": idle, Workers: status.workers_show.length };
  byId("figures").replaceChildren(
    ...Object.entries(figures).map(([name, value]) => {
      const figure = document.createElement("div");
      figure.append(made("dt", name), made("dd", value));
      return figure;
    }),
  );
  put(byId("service"), `Programs are held by ${status.isolation}.`, "quiet");
  byId("forget").hidden = !sessionStorage.getItem("key");
  showWorkers(status.workers_show);
}

function showWorkers(workers) {
  const focused = document.activeElement?.dataset?.worker;
  byId("workers").replaceChildren(
    ...workers.map((worker) => {
      const item = made("li", `${worker.worker_id}: ${worker.status}`, worker.status);
      if (worker.job_id) {
        const button = jobButton(worker.job_id);
        button.dataset.worker = worker.worker_id;
        item.append(button);
      }
      return item;
    }),
  );
  if (focused) byId("workers").querySelector(`[data-worker="${CSS.escape(focused)}"]`)?.focus();
}

function made(kind, text, className = "") {
  const element = document.createElement(kind);
  put(element, text, className);
  return element;
}

function jobButton(id) {
  const button = made("button", id.slice(0, 8));
  button.type = "button";
  button.title = visible(id);
  button.addEventListener("click", () => {
    location.hash = `job=${encodeURIComponent(id)}`;
  });
  return button;
}

function showJobs({ jobs, next_before: more }) {
  const ids = jobs.map((job) => job.job_id);
  for (const job of jobs) showRow(job);
  const table = byId("jobs");
  const before = [...table.children].map((row) => row.dataset.job);
  if (ids.join() !== before.join()) {
    const focused = table.contains(document.activeElement) ? document.activeElement.closest("tr").dataset.job : null;
    table.replaceChildren(...ids.map((id) => rows.get(id)));
    for (const id of rows.keys()) if (!ids.includes(id)) rows.delete(id);
    rows.get(focused)?.querySelector("button").focus();
  }
  byId("no-jobs").hidden = jobs.length > 0;
  byId("more").hidden = more === null || shownJobs.limit >= MOST_JOBS;
}

function showRow(job) {
  let row = rows.get(job.job_id);
  if (!row) {
    row = document.createElement("tr");
    row.dataset.job = job.job_id;
    row.insertCell().append(jobButton(job.job_id));
    for (let cell = 0; cell < 8; cell += 1) row.insertCell();
    rows.set(job.job_id, row);
  }
  row.className = opened?.id === job.job_id ? "chosen" : "";
  const [, state, outcome, score, at, waited, took, worker, labels] = row.cells;
  put(state, job.status, stateClass(job));
  put(outcome, job.result?.result ?? "", job.result?.result === "success" ? "good" : "bad");
  put(score, number(job.result?.validation_score));
  put(at, moment(job.created_at));
  put(waited, seconds(job.created_at, job.started_at ?? job.completed_at));
  put(took, job.started_at ? seconds(job.started_at, job.completed_at) : "");
  put(worker, job.worker_id ?? "");
  put(labels, labelsOf(job));
  labels.title = labels.textContent;
}

function stateClass(job) {
  return { failed: "bad", cancelled: "quiet", running: "busy" }[job.status] ?? "";
}

const labelsOf = (job) => Object.entries(job.labels).map(([key, value]) => `${key}=${value}`).join(" ");
const number = (value) => (value === null || value === undefined ? "" : String(Number(value.toPrecision(6))));
const moment = (text) => (text ? new Date(text).toLocaleString() : "");

function seconds(from, to) {
  const passed = Math.max(0, ((to ? new Date(to) : new Date()) - new Date(from)) / 1000);
  if (passed < 100) return `${passed.toFixed(1)} s`;
  return passed < 6000 ? `${(passed / 60).toFixed(1)} min` : `${(passed / 3600).toFixed(1)} h`;
}

byId("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = new URLSearchParams();
  const state = byId("filter-state").value;
  const label = byId("filter-label").value.trim();
  if (label && !/^[^=]+=/.test(label)) {
    put(byId("filter-trouble"), "A label reads KEY=VALUE.");
    return;
  }
  put(byId("filter-trouble"), "");
  if (state) query.set("status", state);
  if (label) query.set("label", label);
  if (byId("filter-mine").checked) query.set("owner", "me");
  shownJobs.query = query;
  shownJobs.limit = PAGE_OF_JOBS;
  refresh();
});

byId("more").addEventListener("click", () => {
  shownJobs.limit = Math.min(MOST_JOBS, shownJobs.limit + PAGE_OF_JOBS);
  refresh();
});

function openFromAddress() {
  const id = /^#job=(.+)$/.exec(location.hash)?.[1];
  closeJob();
  if (!id) return;
  opened = { id: decodeURIComponent(id), stop: new AbortController(), lastEvent: "", attempt: 0 };
  rows.get(opened.id)?.classList.add("chosen");
  put(byId("detail-title"), `Job ${opened.id}`);
  for (const part of ["facts", "log", "files"]) byId(part).replaceChildren();
  put(byId("log-state"), "", "quiet");
  say("detail-trouble", "");
  byId("files-part").hidden = true;
  byId("cancel").hidden = true;
  byId("detail").hidden = false;
  byId("detail-title").focus();
  follow(opened);
}

function closeJob() {
  opened?.stop.abort();
  if (opened) rows.get(opened.id)?.classList.remove("chosen");
  opened = null;
  byId("detail").hidden = true;
}

window.addEventListener("hashchange", openFromAddress);
byId("close").addEventListener("click", () => {
  const id = opened?.id;
  history.replaceState(null, "", location.pathname);
  closeJob();
  rows.get(id)?.querySelector("button").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && opened && !byId("ask").open) byId("close").click();
});

async function follow(job) {
  const path = `${API}/jobs/${encodeURIComponent(job.id)}/events`;
  while (opened === job) {
    try {
      const headers = job.lastEvent ? { "Last-Event-ID": job.lastEvent } : {};
      const answer = await ask(path, { headers, signal: job.stop.signal });
      say("detail-trouble", "");
      for await (const { event, data } of eventsOf(answer, job)) {
        if (opened !== job || event === "end") return;
        if (event === "state") showJob(job, data);
        if (event === "log") showOutput(job, data);
      }
    } catch (error) {
      if (opened !== job) return;
      say("detail-trouble", error instanceof Refusal ? error.message : "The connection was lost; trying again.");
      if (error instanceof Refusal && error.status < 500 && error.status !== 429) return;
    }
    await new Promise((resume) => setTimeout(resume, REFRESH_MS));
  }
}

async function* eventsOf(answer, job) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    const blocks = waiting.split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s).slice(0, 2)));
      if (fields.id) job.lastEvent = fields.id;
      if (fields.event) yield { event: fields.event, data: JSON.parse(fields.data) };
    }
  }
}

function showJob(job, view) {
  const result = view.result ?? {};
  const facts = {
    State: view.status,
    Outcome: result.result,
    "Validation score": number(result.validation_score),
    "Test score": number(result.test_score),
    Error: view.error,
    Signature: result.error_signature,
    Message: result.message,
    Warnings: result.warnings?.join("\n"),
    Made: moment(view.created_at),
    Started: moment(view.started_at),
    Ended: moment(view.completed_at),
    Attempts: view.attempts,
    Worker: view.worker_id,
    Labels: labelsOf(view),
    "Program ran": view.result ? `${number(result.program_seconds)} s` : "",
    "Held by": result.isolation,
  };
  const told = Object.entries(facts).filter(([, value]) => value !== undefined && value !== null && value !== "");
  byId("facts").replaceChildren(...told.flatMap(([name, value]) => [made("dt", name), made("dd", value)]));
  const ended = ENDED.includes(view.status);
  byId("cancel").hidden = ended;
  put(byId("log-state"), ended ? "(complete)" : "(live)", "quiet");
  showRowIfListed(view);
  if (view.status === "completed") showFiles(job);
}

function showRowIfListed(view) {
  if (rows.has(view.job_id)) showRow(view);
}

function showOutput(job, { text, skipped_bytes: skipped, attempt }) {
  const log = byId("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  if (attempt !== job.attempt && job.attempt) log.append(`\n[the job was started again: attempt ${Number(attempt)}]\n`);
  job.attempt = attempt;
  if (skipped) log.append(`\n[... ${Number(skipped)} bytes cut ...]\n`);
  log.append(visible(text));
  if (log.textContent.length > LOG_CHARACTERS) log.textContent = log.textContent.slice(-LOG_CHARACTERS / 2);
  if (atEnd) log.scrollTop = log.scrollHeight;
}

async function showFiles(job) {
  const path = `${API}/jobs/${encodeURIComponent(job.id)}/artifacts`;
  let listed;
  try {
    listed = (await (await ask(path, { signal: job.stop.signal })).json()).artifacts;
  } catch {
    return; // not this key's job, or the page has moved on
  }
  if (opened !== job || listed.length === 0) return;
  byId("files").replaceChildren(
    ...listed.map((file) => {
      const item = made("li", `${file.name}, ${file.size_bytes.toLocaleString()} bytes `);
      const button = made("button", "Download");
      button.type = "button";
      button.addEventListener("click", () => download(`${path}/${encodeURIComponent(file.name)}`, file.name));
      item.append(button);
      return item;
    }),
  );
  byId("files-part").hidden = false;
}

async function download(path, name) {
  try {
    const address = URL.createObjectURL(await (await ask(path)).blob());
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  } catch (error) {
    say("detail-trouble", error.message);
  }
}

byId("cancel").addEventListener("click", async (event) => {
  const button = event.currentTarget;
  if (!button.dataset.sure) {
    button.dataset.sure = "yes";
    button.textContent = "Really cancel it?";
    setTimeout(() => {
      delete button.dataset.sure;
      button.textContent = "Cancel the job";
    }, 4000);
    return;
  }
  try {
    await ask(`${API}/jobs/${encodeURIComponent(opened.id)}`, { method: "DELETE" });
  } catch (error) {
    say("detail-trouble", error.message);
  }
});

refresh();
openFromAddress();
