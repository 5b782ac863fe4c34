"""Lookups in one array of rows by FastAPI under uvicorn, as most people would write them; prints the port.

/default: a pydantic model in, lists out. /orjson: orjson in, OPT_SERIALIZE_NUMPY out. /empty: a raw ASGI answer.
"""

import socket
import sys

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

ROWS = np.load(sys.argv[1])
NUM_ROWS, DIM = ROWS.shape
api = FastAPI()


class Question(BaseModel):
    ids: list[int]


@api.post("/default")
async def default(question: Question):
    vectors = ROWS[question.ids].tolist()
    status = ["known"] * len(vectors)
    return {"feature": "item_id", "version": 1, "dim": DIM, "ids": question.ids, "status": status, "vectors": vectors}


@api.post("/orjson")
async def by_orjson(request: Request):
    ids = orjson.loads(await request.body())["ids"]
    answer = {
        "feature": "item_id",
        "version": 1,
        "dim": DIM,
        "ids": ids,
        "status": ["known"] * len(ids),
        "vectors": ROWS[ids],
    }
    return Response(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


async def outermost(scope, receive, send):
    if scope["type"] == "http" and scope["path"] == "/empty":
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})
        return
    await api(scope, receive, send)


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    settings = uvicorn.Config(outermost, log_level="warning", access_log=False, proxy_headers=False)
    uvicorn.Server(settings).run([listener])
