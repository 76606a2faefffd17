"""Builds the directory of a search run that looks like a real one, through the run's own classes, without running a program."""

import hashlib
import math
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from openmle_evo.budget import ModelCall
from openmle_evo.run import FinalReport, RunDirectory, RunManifest, Standing
from openmle_evo.selection import draw
from openmle_gym.chat import Usage
from openmle_gym.evaluate import Attempt
from openmle_gym.experience import Candidate, ExperienceCard, Selection
from openmle_gym.features import best_card, ranked
from openmle_gym.jobs import Outcome
from openmle_gym.manifest import Metric
from openmle_gym.operators import Operator
from openmle_gym.prompts import Remaining
from openmle_gym.scores import SelfReportedScore, TestScore, ValidationScore

_TEMPERATURE = 0.35
START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
_MODELS = ("HistGradientBoostingRegressor", "RandomForestRegressor", "Ridge", "SVR", "MLPRegressor", "LGBMRegressor")
_FAILURES = (
    (Outcome.CODE_EXECUTION_ERROR, "KeyError@load_features", "KeyError: 'building_age' (line 14: train['building_age'])"),
    (Outcome.CODE_EXECUTION_ERROR, "ValueError@main", "ValueError: Input X contains NaN. (line 31: model.fit(x, y))"),
    (Outcome.TIMEOUT, "timeout", "The program was stopped after 60 s."),
    (Outcome.SUBMISSION_MISSING, "submission_missing", "The program ended without writing submission.csv."),
    (Outcome.SCORING_FAILED, "ids_differ", "Column `id` of the submission lacks 3 of 500 rows."),
    (Outcome.CODE_MISSING, "no_code", "The reply holds no program."),
    (Outcome.REJECTED, "reads_answers", "line 9 names 'private/test_answer.csv'"),
)  # fmt: skip


@dataclass(kw_only=True)
class SyntheticRun:
    """What the run is like; `build` writes it."""

    attempts: int
    higher_is_better: bool = False
    finished: bool = True
    under_way: int = 0
    seed: int = 0
    log_characters: int = 600
    program_lines: int = 60
    source_of: dict[int, str] = field(default_factory=dict)
    """Program text of chosen attempts; they are valid."""
    log_of: dict[int, str] = field(default_factory=dict)
    score_of: dict[int, float | None] = field(default_factory=dict)
    """Validation score of chosen attempts; None for a failure."""
    title: str = "Rent of flats in three districts"
    leaderboard: bool = True
    test_failed: bool = False
    estimated: bool = True

    def build(self, path: Path) -> Path:
        """Writes the run and returns its directory."""
        rng = random.Random(self.seed)
        run = RunDirectory.create(path, self._manifest())
        cards: list[ExperienceCard] = []
        for number in range(self.attempts):
            attempt = self._choose(number, cards, rng)
            run.choose(attempt, Remaining())
            card = self._judge(attempt, cards, rng)
            run.called(_call(card))
            run.judged(card)
            cards.append(card)
        for number in range(self.attempts, self.attempts + self.under_way):
            run.choose(self._choose(number, cards, rng), Remaining())
        best = best_card(cards)
        if best is not None:
            run.write_best(best)
            if self.finished:
                run.write_final(self._final(best))
        run.close()
        return path

    def _manifest(self) -> RunManifest:
        return RunManifest(
            run_id="synthetic-0001",
            created_at=_iso(START),
            openmle_version="0.1.0",
            task="flat_rents",
            title=self.title,
            metric=Metric(name="R2" if self.higher_is_better else "RMSE", higher_is_better=self.higher_is_better),
            package="packages/flat_rents",
            policy="recipes",
            executor="local",
            isolation="bubblewrap",
            settings={
                "steps": self.attempts,
                "workers": 2,
                "seed": self.seed,
                "sandbox_seconds": None,
                "selection": {"score": 1.0, "gain": 0.4, "novelty": 0.25, "temperature": _TEMPERATURE},
                "schedule": {"initial_drafts": 5, "crossover_probability": 0.5},
            },
        )

    def _choose(self, number: int, cards: list[ExperienceCard], rng: random.Random) -> Attempt:
        operator, parents, selection = self._choice(number, cards, rng)
        return Attempt(
            run_id="synthetic-0001",
            task="flat_rents",
            attempt=number,
            operator=operator,
            parents=parents,
            selection=selection,
        )

    def _choice(
        self, number: int, cards: list[ExperienceCard], rng: random.Random
    ) -> tuple[Operator, tuple[int, ...], Selection]:
        if cards and cards[-1].may_parent(Operator.DEBUG) and rng.random() < 0.8:
            failed = cards[-1].attempt
            return Operator.DEBUG, (failed,), Selection(reason=f"attempt {failed} failed")
        scored = [card for card in cards if card.valid]
        if number < 5 or not scored or rng.random() < 0.03:
            return Operator.DRAFT, (), Selection(reason="warm-up" if number < 5 else "by chance")
        candidates = _weighed(ranked(cards)[:8], rng)
        operator = Operator.CROSSOVER if len(candidates) > 2 and rng.random() < 0.2 else Operator.IMPROVE
        drawn = draw(candidates, operator.parent_count, rng)
        selection = Selection(
            reason="drawn by score, gain and novelty", temperature=_TEMPERATURE, candidates=tuple(candidates)
        )
        return operator, tuple(candidate.attempt for candidate in drawn), selection

    def _judge(self, attempt: Attempt, cards: list[ExperienceCard], rng: random.Random) -> ExperienceCard:
        number = attempt.attempt
        parents = [card for card in cards if card.attempt in attempt.parents]
        fails = rng.random() < (0.35 if attempt.operator is Operator.DEBUG else 0.22)
        outcome, signature, message = rng.choices(_FAILURES, weights=(9, 7, 3, 2, 2, 1, 1))[0]
        if fails and number not in self.source_of and number not in self.score_of:
            score = None
        else:
            score = self.score_of.get(number, self._score(number, parents, rng))
        source = self.source_of.get(number, self._program(number, parents, rng))
        if score is not None:
            outcome, signature, message = Outcome.SUCCESS, None, ""
        if outcome is Outcome.CODE_MISSING:
            source = ""
        log = self.log_of.get(number, self._log(number, score, signature))
        cut = max(len(log) - 16_000, 0)
        return ExperienceCard(
            run_id=attempt.run_id,
            task=attempt.task,
            attempt=number,
            operator=attempt.operator,
            parents=attempt.parents,
            selection=attempt.selection,
            program_id=hashlib.sha256(source.encode()).hexdigest()[:16] if source else None,
            source=source,
            plan=f"Attempt {number}: scale the numeric columns, encode the district, and fit {rng.choice(_MODELS)}.",
            outcome=outcome,
            validation=None if score is None else ValidationScore(value=score, higher_is_better=self.higher_is_better),
            self_reported=None
            if score is None
            else SelfReportedScore(value=round(score * 0.98, 4), higher_is_better=self.higher_is_better),
            error_signature=signature,
            message=message,
            log_head=log[:8_000] if cut else log,
            log_tail=log[-8_000:] if cut else "",
            truncated_bytes=cut,
            isolation="bubblewrap",
            model="recipes",
            usage=Usage(
                prompt_tokens=rng.randint(900, 4000),
                completion_tokens=rng.randint(300, 1800),
                estimated=self.estimated,
            ),
            sandbox_seconds=round(rng.lognormvariate(0.8, 0.6), 3),
            queue_seconds=round(max(rng.gauss(0.1, 0.3), 0.0), 3),
            model_seconds=round(rng.uniform(0.5, 6.0), 3),
            finished_at=_iso(START + timedelta(seconds=6.5 * (number + 1))),
        )

    def _score(self, number: int, parents: list[ExperienceCard], rng: random.Random) -> float:
        """RMSE falls from about 300, R2 rises from about 0.4; now and then a program is far off."""
        scores = [card.validation.value for card in parents if card.validation]
        if self.higher_is_better:
            start = max(scores, default=rng.uniform(0.35, 0.6))
            return round(-40.0 if rng.random() < 0.02 else start + rng.gauss(-0.01, 0.02) * (1 - start), 6)
        start = min(scores, default=rng.uniform(260, 340))
        return round(9_000.0 if rng.random() < 0.02 else 150 + (start - 150) * math.exp(rng.gauss(0.03, 0.06)), 4)

    def _program(self, number: int, parents: list[ExperienceCard], rng: random.Random) -> str:
        if parents and parents[0].source:
            lines = parents[0].source.splitlines()
            for _ in range(3):
                place = rng.randrange(12, len(lines)) if len(lines) > 12 else 0
                lines[place] = (
                    f"    x = x.assign(step_{number}=x['area'] * {rng.uniform(0.1, 2.0):.3f})  # attempt {number}"
                )
            return "\n".join(lines) + "\n"
        model = rng.choice(_MODELS)
        head = f'''"""Attempt {number}: {model} on scaled columns."""

import numpy as np
import pandas as pd
from sklearn.preprocessing import StandardScaler
from sklearn.ensemble import *

train = pd.read_csv("data/train.csv")
test = pd.read_csv("data/test.csv")


def load_features(table: pd.DataFrame) -> pd.DataFrame:
    """Numeric columns, and the district as numbers."""
    x = table.select_dtypes("number").fillna(0.0)
'''
        body = "".join(
            f"    x['ratio_{place}'] = x['area'] / (1.0 + x['rooms'] * {rng.uniform(0.5, 2.0):.3f})\n"
            for place in range(self.program_lines - 20)
        )
        return head + body + f"    return x\n\n\nmodel = {model}()\nmodel.fit(load_features(train), train['rent'])\n"

    def _log(self, number: int, score: float | None, signature: str | None) -> str:
        line = f"[{number}] fold 1 of 5: 1200 rows, 14 columns, loss 0.{number:04d}\n"
        end = f"Final Validation Score: {score}\n" if score is not None else f"{signature}\n"
        return (line * (self.log_characters // len(line) + 1))[: max(self.log_characters - len(end), 0)] + end

    def _final(self, best: ExperienceCard) -> FinalReport:
        assert best.validation is not None
        test = None
        if not self.test_failed:
            test = TestScore(value=round(best.validation.value * 1.02, 4), higher_is_better=self.higher_is_better)
        standing = Standing(entries=12, rank=3, fraction_beaten=0.75, medal="silver", made_by="machine")
        return FinalReport(
            attempt=best.attempt,
            program_id=best.program_id or "",
            validation=best.validation,
            test=test,
            message="MemoryError" if self.test_failed else "",
            sample_submission=TestScore(
                value=0.0 if self.higher_is_better else 412.5, higher_is_better=self.higher_is_better
            ),
            standing=standing if self.leaderboard and test else None,
            finished_at=_iso(START + timedelta(seconds=6.5 * self.attempts + 20)),
        )


def _call(card: ExperienceCard) -> ModelCall:
    return ModelCall(
        attempt=card.attempt,
        purpose=card.operator,
        model=card.model,
        usage=card.usage,
        seconds=card.model_seconds,
        finished_at=card.finished_at,
    )


def _weighed(members: list[ExperienceCard], rng: random.Random) -> list[Candidate]:
    """Candidates whose utilities fit their probabilities; the gains and novelties are invented."""
    rows = []
    for place, card in enumerate(members):
        score, gain, novelty = 1 - place / len(members), rng.choice((0.0, rng.random())), rng.uniform(0.3, 1.0)
        rows.append((card.attempt, score, gain, novelty, score + 0.4 * gain + 0.25 * novelty))
    total = sum(math.exp(row[-1] / _TEMPERATURE) for row in rows)
    candidates = [
        Candidate(
            attempt=attempt,
            score=score,
            gain=gain,
            novelty=novelty,
            utility=utility,
            probability=math.exp(utility / _TEMPERATURE) / total,
        )
        for attempt, score, gain, novelty, utility in rows
    ]
    return sorted(candidates, key=lambda candidate: -candidate.probability)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
