/* The run that the page shows, and what follows from it. */

let run, metric, trusting, selectedOn, byNumber, best, validCount, childrenOf;

function take(data) {
  run = data;
  metric = run.manifest.metric;
  trusting = run.manifest.protocol === "self_valid";
  selectedOn = trusting ? "self-reported" : "validation";
  byNumber = new Map(run.attempts.map((attempt) => [attempt.attempt, attempt]));
  best = byNumber.get(run.best);
  validCount = run.attempts.filter((attempt) => attempt.utility !== null).length;
  childrenOf = new Map(run.attempts.map((attempt) => [attempt.attempt, []]));
  for (const attempt of run.attempts) {
    for (const parent of attempt.parents) childrenOf.get(parent)?.push(attempt.attempt);
  }
}

take(embedded);

const tokens = (attempt) => attempt.usage.prompt_tokens + attempt.usage.completion_tokens;
const link = (number, text) => el("a", { href: `#attempt-${number}` }, text ?? String(number));
const links = (numbers) => numbers.flatMap((number, place) => [place ? ", " : null, byNumber.has(number) ? link(number) : String(number)]);

/* Fifths of the valid attempts, 0 the best; null for an attempt without a score. */
const fifth = (attempt) => (attempt.rank === null ? null : Math.min(4, Math.floor((5 * (attempt.rank - 1)) / validCount)));

function lineage(attempt) {
  const of = attempt.parents.length ? ` of ${attempt.parents.join(" and ")}` : "";
  return `${attempt.operator}${of}`;
}

function describe(attempt) {
  const score = attempt.validation
    ? `${metric.name} ${number(attempt.validation.value)}, rank ${attempt.rank} of ${validCount}${attempt.new_best ? ", new best" : ""}`
    : `${words(attempt.outcome)}${attempt.error_signature ? `: ${attempt.error_signature}` : ""}`;
  return `Attempt ${attempt.attempt}, ${lineage(attempt)}, ${visible(score)}`;
}

/* The first parents from an attempt up to its draft, the attempt first. */
function ancestry(attempt) {
  const line = [];
  for (let at = attempt; at && !line.includes(at); at = byNumber.get(at.parents[0])) line.push(at);
  return line;
}
