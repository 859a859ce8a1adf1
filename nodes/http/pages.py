"""Room 1. The endpoints beside the answers: tokens, models, health, readiness, live requests."""

from __future__ import annotations

import importlib.metadata
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nodes.http.bodies import MAX_IDS, DetokenizeBody, TokenizeBody, read
from nodes.http.calls import Failed
from nodes.http.door import Door
from nodes.http.errors import HttpError, bad, of_outcome
from nodes.http.mailbox import PAGES
from nodes.http.round import Round
from nodes.http.wanted import Wanted, of_texts
from nodes.text import Text
from zpd.errors import Outcome
from zpd.gates import held

DISTRIBUTION = "zpd-serve"
STEP = 10_000  # ids or characters; a millisecond


class Pages:
    def __init__(self, door: Door, asked: Round) -> None:
        self.door = door
        self.asked = asked

    # ---- text ------------------------------------------------------------------------------------

    async def tokenize(self, request: Request) -> Response:
        door = self.door
        with door.admission.enter(request.scope):
            model, wanted = await door.body(request.scope, request.receive, _to_tokens, PAGES)
            door.check_model(model)
            text = door.text()
            door.form(wanted, text)
            (ids,) = await door.tokens(wanted, text, PAGES)
            limit = door.mailbox.facts.limit
            said = await door.mailbox.work(lambda: _tokens(ids, limit), PAGES)
        return Response(said, media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        door = self.door
        with door.admission.enter(request.scope):
            body = await door.body(request.scope, request.receive, _to_text, PAGES)
            door.check_model(body.model)
            text = door.text()
            said = await door.mailbox.work(lambda: _prompt(body.tokens, text), PAGES)
        return Response(said, media_type="application/json")

    # ---- what there is ---------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self.door.check_model(request.path_params["model"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        door = self.door
        return {
            "id": door.model, "object": "model", "created": door.began, "owned_by": "zpd",
            "max_model_len": door.mailbox.facts.limit,
        }  # fmt: skip

    async def version(self, request: Request) -> Response:
        try:
            version = importlib.metadata.version(DISTRIBUTION)
        except importlib.metadata.PackageNotFoundError:  # run from its sources
            version = "unknown"
        return JSONResponse({"version": version})

    # ---- how it is -------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        missing = await self._missing()
        said = {"ready": not missing, "missing": missing}
        return JSONResponse(said, 503 if missing else 200)

    async def _missing(self) -> list[dict[str, Any]]:
        """Every leg that does not serve: its name, why, and since when (seconds since 1970)."""
        facts, now = self.door.mailbox.facts, time.time()
        name = self.door.topology.coordinator.name
        if facts.down:
            return [_leg("front door", facts.down, facts.since)]
        found = await self.asked.coordinator()
        if "error" in found:
            return [_leg(name, found["error"], now)]
        if found["ready"]:
            return []
        down = found["actor"]["down"]
        peers = found.get("peers", {})
        legs = [_leg(n, why, now - peers.get(n, {}).get("seconds", 0.0)) for n, why in down.items()]
        return legs or [_leg("ring", found["why"], now - found["actor"]["ready_seconds"])]

    # ---- live requests ---------------------------------------------------------------------------

    async def requests(self, request: Request) -> Response:
        """Those that the coordinator has, whoever asked, and ours that it does not have yet."""
        topology, said = self.door.topology, await self.asked.next()
        name = topology.coordinator.name
        if "error" in said[name]:
            raise of_outcome(Outcome.UNAVAILABLE, f"{name}: {said[name]['error']}")
        return JSONResponse({"object": "list", "data": list(map(asdict, held(topology, said)))})

    async def cancel(self, request: Request) -> Response:
        name, calls = request.path_params["id"], self.door.calls
        call = calls.get(name) or next((c for c in calls.values() if name in c.uids.values()), None)
        if call is None:
            text = f"id: no request {name[:128]!r} of this front door lives"
            raise HttpError(404, text, "unknown_request", "id")
        why = "cancelled by DELETE /v1/requests"
        if call.questions:
            self.door.mailbox.cancel(call, why)
        else:  # its prompt is being tokenised, and nobody was asked
            call.put(Failed(of_outcome(Outcome.CANCELLED, why)))
        return JSONResponse({"id": call.id, "object": "request", "cancelled": True})


def _to_tokens(raw: bytes) -> tuple[str | None, Wanted]:
    body = read(TokenizeBody, raw)
    return body.model, of_texts(body)


def _to_text(raw: bytes) -> DetokenizeBody:
    """The parser is one call that lets no other thread run: of far too many ids not even that."""
    if raw.count(b",") > MAX_IDS:  # one between each two of them, and one beside the model's name
        raise bad("tokens", f"more than {MAX_IDS} ids")
    return read(DetokenizeBody, raw)


def _prompt(ids: Sequence[int], text: Text) -> str:
    """The JSON of their text. Raises HttpError(400)."""
    if (most := max(ids, default=0)) >= text.vocab_size:
        raise bad("tokens", f"{most}: ids are from 0 to {text.vocab_size - 1}")
    said = b"".join(map(text.bytes_of, ids)).decode("utf-8", "replace")
    parts = (said[i : i + STEP] for i in range(0, len(said), STEP))
    pieces = (json.dumps(part, ensure_ascii=False)[1:-1] for part in parts)
    return f'{{"prompt":"{"".join(pieces)}"}}'


def _tokens(ids: list[int], limit: int) -> str:
    """The JSON of many ids. In pieces, as a single call of ``json`` lets no other thread run."""
    pieces = [",".join(map(str, ids[i : i + STEP])) for i in range(0, len(ids), STEP)]
    return f'{{"tokens":[{",".join(pieces)}],"count":{len(ids)},"max_model_len":{limit}}}'


def _leg(name: str, why: str, since: float) -> dict[str, Any]:
    return {"leg": name, "why": why, "since": round(since, 3)}
