"""Online learners in a process of their own: Vowpal Wabbit and River, one pass, each sample predicted before learned.

The ids of a log are `ids_NE`, one column per element of a sample, absent ones of a list marked in `present_NE`;
`fields_E` names the field of each column. A number is an id, its logarithm in quarters, and the logarithm itself in
`values_NE`, NaN where there is none; River gets the ids alone.
"""

# N samples, E elements of a sample
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from string import ascii_letters

import numpy as np
from serving import load, serve, timed

BITS = 24  # of VW's table: 16.8 million weights


class Samples:
    """A log as the learners read it."""

    def __init__(self, folder: str) -> None:
        names = ("ids_NE", "present_NE", "values_NE", "fields_E", "clicked_N")
        self.ids, self.present, self.values, self.fields, self.clicked = (
            load(f"{folder}/{name}.npy") for name in names
        )
        self._folder = tempfile.TemporaryDirectory(prefix="vw-")  # VW's options cannot name a path with a space
        self.vw_path = Path(self._folder.name) / "log.vw"
        self.vw_path.write_text("".join(self._vw_lines()))

    def _vw_lines(self) -> Iterator[str]:
        fields = self.fields.tolist()
        columns = (self.ids, self.present, self.values, self.clicked)
        for ids, present, values, clicked in zip(*(column.tolist() for column in columns), strict=True):
            parts, before = ["1" if clicked else "-1"], None
            for field, row_id, is_present, value in zip(fields, ids, present, values, strict=True):
                if field != before:
                    parts.append(f"|{ascii_letters[field]}")
                    before = field
                if is_present:
                    parts.append(f"{row_id & (1 << 64) - 1:x}")
                if value == value:
                    parts.append(f"log:{value:g}")
            yield " ".join(parts) + "\n"

    def as_dicts(self) -> Iterator[tuple[dict[str, float], bool]]:
        fields = self.fields.tolist()
        for ids, present, clicked in zip(self.ids.tolist(), self.present.tolist(), self.clicked.tolist(), strict=True):
            yield (
                {f"{field}={value}": 1.0 for field, value, here in zip(fields, ids, present, strict=True) if here},
                bool(clicked),
            )


class Learners:
    """Runs one learner after another over the log that was read last."""

    def __init__(self) -> None:
        self.samples: Samples | None = None

    def read(self, folder: str) -> None:
        """Read a log."""
        self.samples = Samples(folder)

    def vw(self, options: str, path: str) -> dict[str, float]:
        """Learn one pass with these options; write the logits to `path` as .npy."""
        from vowpalwabbit import Workspace

        assert self.samples is not None
        raw = self.samples.vw_path.with_suffix(".raw")
        # with low-rank crosses -r writes what is predicted after learning a sample's one side, -p what was before
        output = "-p" if "--lrq" in options else "-r"
        fixed = f"--quiet --no_stdin --loss_function logistic --hash all -b {BITS} -d {self.samples.vw_path}"
        seconds = timed(lambda: Workspace(f"{fixed} {output} {raw} {options}").finish())
        np.save(path, np.array(raw.read_text().split(), np.float64))
        return seconds

    def river(self, model: str, rate: float, path: str) -> dict[str, float]:
        """Learn one pass; write the logits to `path` as .npy."""
        from river import facto, linear_model, optim

        assert self.samples is not None
        kinds = {
            "LR Adagrad": lambda: linear_model.LogisticRegression(optim.AdaGrad(rate)),
            "LR FTRL": lambda: linear_model.LogisticRegression(optim.FTRLProximal(alpha=rate)),
            "FM Adagrad": lambda: facto.FMClassifier(
                weight_optimizer=optim.AdaGrad(rate), latent_optimizer=optim.AdaGrad(rate), seed=0
            ),
        }
        learner, probabilities = kinds[model](), []
        began = time.perf_counter()
        for features, clicked in self.samples.as_dicts():
            probabilities.append(learner.predict_proba_one(features).get(True, 0.5))
            learner.learn_one(features, clicked)
        seconds = time.perf_counter() - began
        p = np.clip(np.array(probabilities), 1e-15, 1 - 1e-15)
        np.save(path, np.log(p) - np.log1p(-p))
        return {"seconds": seconds}


def versions() -> dict[str, str]:
    return {"VW": version("vowpalwabbit"), "River": version("river")}


if __name__ == "__main__":
    learners = Learners()
    serve({"versions": versions, "read": learners.read, "vw": learners.vw, "river": learners.river})
