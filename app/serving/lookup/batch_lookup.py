"""Many rows by POST: what a request's head says of it, the view it is answered from, and the answer's bytes."""

# N ids of a request
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.serving.http.errors import ApiError, no_such_feature
from app.serving.http.preconditions import Preconditions, parse_preconditions
from app.serving.lookup.codecs import (
    JSON,
    RAW,
    LookupRequest,
    MediaType,
    encode_response,
    negotiate_media_type,
    parse_content_type,
)
from app.serving.model.replica import Replica
from app.serving.model.view import ModelView

# up to here an answer costs less than handing it to a thread: so many ids, and so many numbers written as text
INLINE_IDS, INLINE_JSON_NUMBERS = 1_024, 16_384


@dataclass(frozen=True)
class LookupOptions:
    """How rows are asked for, apart from the ids."""

    feature: str
    request_type: MediaType
    response_type: MediaType
    preconditions: Preconditions

    @staticmethod
    def from_headers(feature: str, headers: Mapping[str, str]) -> "LookupOptions":
        """From lower-case header names; ApiError where they say nothing this server understands."""
        asked = parse_content_type(headers.get("content-type", ""))
        return LookupOptions(
            feature, asked, negotiate_media_type(headers.get("accept", ""), asked), parse_preconditions(headers)
        )


def feature_number(view: ModelView, manner: LookupOptions) -> int:
    """The number of the feature in keys; ApiError where there is none, or where its ids are not what is sent."""
    number = view.feature_numbers.get(manner.feature)
    if number is None:
        raise no_such_feature(manner.feature, view.schema.features)
    if RAW in (manner.request_type.name, manner.response_type.name) and view.has_id_strings(number):
        hint = "use application/json, application/msgpack or application/vnd.apache.arrow.stream"
        message = f"the ids of {manner.feature} are texts: raw int64 will not do"
        raise ApiError(415, "unsupported_media_type", message, hint)
    return number


def runs_inline(view: ModelView, manner: LookupOptions, num_ids: int) -> bool:
    """Whether the event loop may answer by itself."""
    return num_ids <= INLINE_IDS and (manner.response_type.name != JSON or num_ids * view.dim <= INLINE_JSON_NUMBERS)


def look_up(
    view: ModelView, number: int, manner: LookupOptions, question: LookupRequest
) -> tuple[bytes | memoryview, npt.NDArray[np.uint8]]:
    """The answer's bytes, and the status of each id."""
    form = manner.response_type
    if form.name == RAW and not form.float16:  # rows and status lie as they are sent
        packed = view.lookup_packed(number, question.ids_N)
        return packed.data, packed[len(packed) - len(question.ids_N) :]
    rows_ND, status_N = view.lookup(number, question.ids_N)
    return encode_response(form, question, rows_ND, status_N, feature=manner.feature, version=view.version), status_N


def response_headers(replica: Replica, view: ModelView, manner: LookupOptions, num_bytes: int) -> dict[str, str]:
    """The headers of an answer."""
    form = manner.response_type
    texts = {
        "content-type": f"{RAW};dtype=float16" if form.float16 else form.name,
        "content-length": str(num_bytes),
        **replica.version_headers(view),
    }
    if form.name == RAW:
        texts["X-Springtide-Dim"] = str(view.dim)
    return texts
