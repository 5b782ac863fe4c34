"""Diagnosis of a table in parts, for `springtide check`: does each server answer, with its own part?"""

import json
from collections.abc import Iterator
from typing import Literal

from springtide.app.serving.config import ServeConfig
from springtide_client.errors import PartError
from springtide_client.parts.part_servers import PartServers

TIMEOUT_SECONDS = 2.0


def check_parts(config: ServeConfig) -> Iterator[tuple[Literal["ok", "note", "problem"], str]]:
    """Ask the server of each part which range it holds."""
    if not config.parts:
        if config.range is not None:
            hint = "set [serve] parts to the addresses of all servers if it is to predict, or to answer for other keys"
            yield "note", f"part: this server looks up the rows of {config.range}, and nothing else: {hint}"
        return
    servers = PartServers(config.parts, timeout_seconds=TIMEOUT_SECONDS)
    for index, url in enumerate(servers.urls):
        wanted = str(servers.range_of(index))
        name = f"part: {wanted} at {url}"
        try:
            response = servers.get(index, "/healthz", {})
            found = json.loads(response.body).get("range", "1/1")
        except PartError as error:
            yield "note", f"{name}: {error}"
        except (ValueError, AttributeError):
            yield "problem", f"{name} is not a Springtide server: it responded {response.status} to /healthz"
        else:
            if found == wanted:
                yield "ok", f"{name} answers"
            else:
                held = "no rows" if found is None else f"part {found}"
                yield "problem", f'{name} holds {held}: start it with range = "{wanted}", or correct [serve] parts'
    servers.close()
