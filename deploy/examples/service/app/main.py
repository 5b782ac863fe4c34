"""A service that ranks with two hot models inside: `CLICKS=URL ORDERS=/log/folder uvicorn app.main:service`.

Its image contains fastapi, uvicorn and springtide-client, and nothing else of Springtide.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Response

from springtide_client import EncodeError, HotModel, StaleModelError

MAX_STALENESS_SECONDS = 60.0


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    """Load both models before the first request is served, and close them at the end."""
    limit = float(os.environ.get("MAX_STALENESS_SECONDS", MAX_STALENESS_SECONDS))
    token = os.environ.get("SPRINGTIDE_TOKEN")
    with (
        HotModel(os.environ["CLICKS"], token=token, max_staleness_seconds=limit) as clicks,
        HotModel(os.environ["ORDERS"], token=token, max_staleness_seconds=limit) as orders,
    ):
        service.state.models = {"clicks": clicks, "orders": orders}
        yield


service = FastAPI(lifespan=lifespan)


@service.post("/rank/{name}")
def rank(name: str, instances: list[dict[str, Any]], response: Response) -> list[int]:
    """Return the instances' indexes, best first. A plain `def`, so that a model never blocks the event loop."""
    model: HotModel | None = service.state.models.get(name)
    if model is None:
        raise HTTPException(404, f"there is no model {name!r}")
    response.headers["X-Model-Version"] = str(model.version)
    try:
        answers = model.predict(instances)
    except EncodeError as error:
        raise HTTPException(422, f"instance {error.index}: {error}") from None
    except StaleModelError as error:
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
    scores = [next(iter(answer.values())) for answer in answers]
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)


@service.get("/models")
def models() -> dict[str, dict[str, float]]:
    """Return each model's version and its staleness in seconds."""
    found: dict[str, HotModel] = service.state.models
    return {name: {"version": m.version, "staleness_seconds": m.staleness_seconds} for name, m in found.items()}
