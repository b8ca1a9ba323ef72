"""A server that answers the part of W&B's protocol (GraphQL) that the tests need, on this machine.

Its answers have the fields that the client of this release asks for.
"""

import base64
import gzip
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PROJECT = {"id": "cA==", "internalId": "cA==", "name": "mine"}
PROJECT["entity"] = {"id": "ZQ==", "name": "me"}
PAGE = {"endCursor": None, "hasNextPage": False}
TIME = "2026-11-24T00:00:00"


class WandbServer(ThreadingHTTPServer):
    """An account "me" with a project "mine" and one artifact, checkpoint-abc:v3."""

    def __init__(self, files: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files = {name: path.read_bytes() for name, path in files.items()}
        self.fetched: list[str] = []
        self.corrupt = False

    def answer(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        make = getattr(self, f"answer_{name}", lambda _: {})
        return make(variables)

    def answer_Viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        account = {"id": "dQ==", "entity": "me", "username": "me", "email": "", "flags": "{}"}
        return {"viewer": account | {"teams": {"edges": []}}}

    answer_GetDefaultEntity = answer_Viewer

    def answer_ArtifactMembershipByName(self, variables: dict[str, Any]) -> dict[str, Any]:
        if variables["name"] not in ("checkpoint-abc:best", "checkpoint-abc:v3"):
            return {"project": {"artifactCollectionMembership": None}}
        artifact = self.make_artifact("checkpoint-abc", "model")
        return {"project": {"artifactCollectionMembership": make_membership(artifact)}}

    def make_artifact(self, name: str, kind: str) -> dict[str, Any]:
        collection = {"__typename": "ArtifactSequence", "name": name, "project": PROJECT}
        return {
            "__typename": "Artifact", "id": make_id(name), "artifactSequence": collection,
            "versionIndex": 3, "artifactType": {"name": kind}, "description": None,
            "metadata": "{}", "ttlDurationSeconds": -1, "ttlIsInherited": True, "tags": [],
            "historyStep": None, "state": "COMMITTED", "size": 1, "digest": self.digest,
            "commitHash": "c", "fileCount": len(self.files), "createdAt": TIME, "updatedAt": None,
            "aliases": [],
        }  # fmt: skip

    @property
    def digest(self) -> str:
        return hashlib.md5(b"".join(self.files.values())).hexdigest()

    def answer_FetchArtifactManifest(self, _: dict[str, Any]) -> dict[str, Any]:
        file = {"directUrl": f"{self.url}/manifest"}
        return {"artifact": {"currentManifest": {"file": file}}}

    def manifest(self) -> dict[str, Any]:
        contents = {}
        for name, content in self.files.items():
            digest = base64.b64encode(hashlib.md5(content).digest()).decode()
            contents[name] = {"digest": digest, "size": len(content), "birthArtifactID": "YQ=="}
        policy = {"storagePolicy": "wandb-storage-policy-v1", "storagePolicyConfig": {}}
        return {"version": 1, **policy, "contents": contents}

    def answer_GetArtifactMembershipFileUrls(self, _: dict[str, Any]) -> dict[str, Any]:
        files = [
            {"__typename": "File", "name": n, "directUrl": f"{self.url}/f/{n}"} for n in self.files
        ]
        page = {"pageInfo": PAGE, "edges": [{"node": file} for file in files]}
        collection = {"__typename": "ArtifactSequence", "artifactMembership": {"files": page}}
        return {"project": {"artifactCollection": collection}}


def make_id(name: str) -> str:
    return base64.b64encode(name.encode()).decode()


def make_membership(artifact: dict[str, Any]) -> dict[str, Any]:
    alias = {"__typename": "ArtifactAlias", "id": "YQ==", "alias": "best"}
    membership = {"__typename": "ArtifactCollectionMembership", "id": "bQ==", "createdAt": TIME}
    membership |= {"versionIndex": 3, "aliases": [alias], "artifact": artifact}
    return membership | {"artifactCollection": artifact["artifactSequence"]}


class Handler(BaseHTTPRequestHandler):
    server: WandbServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, content: bytes, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        if self.path == "/manifest":
            return self.reply(json.dumps(self.server.manifest()).encode())
        name = self.path.removeprefix("/f/")
        if name not in self.server.files:
            return self.reply(b"{}", 404)
        self.server.fetched.append(name)
        content = self.server.files[name]
        return self.reply(content[::-1] if self.server.corrupt else content)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        if self.path != "/graphql":
            return self.reply(b"{}")
        asked = json.loads(content)
        [name] = re.findall(r"(?:query|mutation) (\w+)", asked["query"])
        data = self.server.answer(name, asked.get("variables") or {})
        return self.reply(json.dumps({"data": data}).encode())

    do_PUT = do_POST
