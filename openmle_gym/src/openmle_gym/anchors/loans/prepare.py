"""Splits the lending-club data: which loans go bad?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "loans/0"
TRAIN_ROWS, ALL_ROWS = 1_500, 5_000
TEXT = Text(
    title="Which loans go bad?",
    about="Each row is a loan that was made over a peer-to-peer platform. One in twenty went bad. Give each loan a "
    "number between 0 and 1, the higher the more likely it goes bad.",
    evaluation="Submissions are scored by average precision, the area under the curve of precision over recall. Higher "
    "is better; a random order scores the share of bad loans, about 0.05.",
    predict="a probability between 0 and 1",
    columns={
        "funded_amnt": "amount of the loan, in US dollars",
        "term": "how long it runs: term_36 or term_60, in months",
        "int_rate": "interest rate, in percent",
        "sub_grade": "the platform's grade, from A1 (best) to G5",
        "addr_state": "US state of the applicant",
        "verification_status": "whether the income was verified",
        "annual_inc": "income in a year, in US dollars",
        "emp_length": "years in the present employment, as a code",
        "delinq_2yrs": "late payments in the past two years",
        "inq_last_6mths": "inquiries in the past six months",
        "revol_util": "share of revolving credit in use, in percent",
        "`acc_now_delinq` to `total_il_high_credit_limit`": "counts and amounts from the credit report",
        "bad": "(train only) 1 for a loan that went bad, 0 for another",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/loans.csv`."""
    table = pd.read_csv(raw / "loans.csv")
    table["bad"] = (table.pop("Class") == "bad").astype(int)
    table = shuffled(table, SEED, ALL_ROWS)
    in_train = stratified(table, "bad", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="loan_id", targets=["bad"], sample="mean")
