"""Splits the speech data: does the voice tell of Parkinson's disease?"""

from pathlib import Path

import pandas as pd
from openmle_gym.anchors.prepare_tools import Text, publish, shuffled, stratified

SEED = "parkinson/0"
TRAIN_ROWS = 110
TEXT = Text(
    title="Does the voice tell of Parkinson's disease?",
    about="Each of {all} people said a long `a` into a microphone; each row is a person by 137 measurements of that "
    "sound. Predict the probability that the person has Parkinson's disease. There are more columns than training rows.",
    evaluation="Submissions are scored by the area under the ROC curve (AUC). Higher is better; 0.5 is chance.",
    predict="a probability between 0 and 1",
    columns={
        "gender": "0 or 1",
        "`PPE` to `maxIntensity`": "pitch, jitter, shimmer, harmonicity, intensity",
        "`f1` to `b4`": "formants and their bandwidths",
        "`GQ_prc5_95` to `IMF_NSR_entropy`": "vocal fold measures",
        "`mean_Log_energy` to `std_12th_delta_delta`": "Mel frequency cepstral coefficients: means and spreads of the "
        "coefficients and of their first and second differences",
        "ill": "(train only) 1 for a person with Parkinson's disease, 0 for another",
    },
)


def prepare(raw: Path, public: Path, private: Path) -> None:
    """Writes the task's public and private files from `raw/parkinson.csv`."""
    table = pd.read_csv(raw / "parkinson.csv")
    # The wavelet measures, six hundred columns, are left out.
    table = table[[*table.columns[: list(table.columns).index("Ea")], "class"]]
    table["ill"] = (table.pop("class") == "PD").astype(int)
    numbers = table.columns[1:-1]
    table[numbers] = table[numbers].map(lambda value: float(f"{value:.5g}"))
    table = shuffled(table, SEED)
    in_train = stratified(table, "ill", TRAIN_ROWS)
    publish(table, in_train, TEXT, public, private, id="person_id", targets=["ill"], sample="mean")
