"""Many rows by POST: what a request's head says of it, the view it is answered from, and the answer's bytes."""

# N ids of a request
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.serving.http.errors import ApiError, no_such_feature
from app.serving.http.preconditions import Demand, read_demand
from app.serving.lookup.codecs import JSON, RAW, Form, Question, answer_form, read_form, write_answer
from app.serving.model.replica import Replica
from app.serving.model.view import ModelView

# up to here an answer costs less than handing it to a thread: so many ids, and so many numbers written as text
INLINE_IDS, INLINE_TEXT_NUMBERS = 1_024, 16_384


@dataclass(frozen=True)
class Manner:
    """How rows are asked for, apart from the ids."""

    feature: str
    asked: Form
    form: Form
    demand: Demand

    @staticmethod
    def of(feature: str, headers: Mapping[str, str]) -> "Manner":
        """From lower-case header names; ApiError where they say nothing this server understands."""
        asked = read_form(headers.get("content-type", ""))
        return Manner(feature, asked, answer_form(headers.get("accept", ""), asked), read_demand(headers))


def feature_number(view: ModelView, manner: Manner) -> int:
    """The number of the feature in keys; ApiError where there is none, or where its ids are not what is sent."""
    number = view.numbers.get(manner.feature)
    if number is None:
        raise no_such_feature(manner.feature, view.schema.features)
    if RAW in (manner.asked.name, manner.form.name) and view.has_texts(number):
        hint = "use application/json, application/msgpack or application/vnd.apache.arrow.stream"
        message = f"the ids of {manner.feature} are texts: raw int64 will not do"
        raise ApiError(415, "unsupported_media_type", message, hint)
    return number


def is_short(view: ModelView, manner: Manner, num_ids: int) -> bool:
    """Whether the event loop may answer by itself."""
    return num_ids <= INLINE_IDS and (manner.form.name != JSON or num_ids * view.dim <= INLINE_TEXT_NUMBERS)


def look_up(
    view: ModelView, number: int, manner: Manner, question: Question
) -> tuple[bytes | memoryview, npt.NDArray[np.uint8]]:
    """The answer's bytes, and the status of each id."""
    form = manner.form
    if form.name == RAW and not form.half:  # rows and status lie as they are sent
        packed = view.packed(number, question.ids_N)
        return packed.data, packed[len(packed) - len(question.ids_N) :]
    rows_ND, status_N = view.lookup(number, question.ids_N)
    return write_answer(form, question, rows_ND, status_N, feature=manner.feature, version=view.version), status_N


def header_texts(replica: Replica, view: ModelView, manner: Manner, num_bytes: int) -> dict[str, str]:
    """The headers of an answer."""
    form = manner.form
    texts = {
        "content-type": f"{RAW};dtype=float16" if form.half else form.name,
        "content-length": str(num_bytes),
        **replica.header_texts(view),
    }
    if form.name == RAW:
        texts["X-Springtide-Dim"] = str(view.dim)
    return texts
