"""The real API server of Kubernetes over etcd, with the same methods for tests as the small one.

Both programs are Debian's: etcd as packaged, and kube-apiserver (1.20) from the source package of
kubernetes. It is built in a bare Debian 11, which takes a quarter of an hour, and kept. The kinds
of Kueue and Volcano are custom resources with the schemas of ``kube_schemas``.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.support.bare_debian import MIRROR, Machine, bare
from tests.support.kube_api import Json, Served
from tests.support.kube_schemas import CHECK_STATE, CONDITIONS, HYPER_NODE, TOPOLOGY, Schema, items
from tests.support.ports import free_port
from tests.support.waiting import wait_until

KEPT = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "heddle-tests" / "kube"
"""Where the built programs are kept."""
RELEASE = "bullseye"
"""Its Go is as old as the source; with later ones the server crashes, or takes "" for null."""
NEEDED = "dpkg-dev golang-go rsync make gcc libc6-dev jq etcd-server ca-certificates"
ADMIN = "admin-token"
ANY: Json = {"x-kubernetes-preserve-unknown-fields": True}


def openapi(schema: Schema) -> Json:
    """Return a schema in the form of custom resources."""
    wanted = schema.get("is")
    if wanted is None:
        return ANY
    if wanted is dict:
        known = {name: openapi(one) for name, one in schema["fields"].items()}
        return {"type": "object", "properties": known, "required": [*schema["needed"]]}
    if wanted is int:
        return {"type": "integer", "minimum": schema["least"]}
    if wanted is list:
        keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [schema["key"]]}
        limits = {"minItems": schema["least"], "maxItems": schema["most"]}
        found = {"type": "array", "items": openapi(schema["of"]), **limits}
        return found | (keys if schema["key"] else {})
    if schema.get("time"):
        return {"type": "string", "format": "date-time"}
    limits = {"minLength": schema["shortest"], "maxLength": schema["longest"]}
    return {"type": "string", "pattern": f"^({schema['pattern']})$", **limits}


def partly(**known: Schema) -> Json:
    """Return an object of which some fields are known."""
    fields = {name: openapi(one) for name, one in known.items()}
    return {"type": "object", "properties": fields, **ANY}


PARTS: dict[str, Json] = {
    "jobsets": {"spec": ANY, "status": ANY},
    "workloads": {"spec": ANY, "status": partly(admissionChecks=items(CHECK_STATE, 8, key="name"))},
    "admissionchecks": {"spec": ANY, "status": partly(conditions=CONDITIONS)},
    "topologies": {"spec": openapi(TOPOLOGY)},
    "hypernodes": {"spec": openapi(HYPER_NODE), "status": ANY},
}
"""Parts of custom resources, by plural."""


def definition(kind: Served) -> Json:
    """Return the definition of a custom resource."""
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": PARTS[kind.plural]}},
        "subresources": {"status": {}} if kind.has_status else {},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {"plural": kind.plural, "kind": kind.kind},
            "versions": [version],
        },
    }


def programs(folder: Path) -> Path:
    """Return the folder of etcd and kube-apiserver; build them in ``folder`` if necessary."""
    if (KEPT / "kube-apiserver").exists():
        return KEPT
    machine = Machine("kube", bare(folder, RELEASE))
    sources = machine.path("/etc/apt/sources.list.d/source.list")
    sources.write_text(f"deb-src {MIRROR} bookworm main\n")
    machine.must(
        f"apt-get -q update; apt-get -qy install --no-install-recommends {NEEDED};"
        " apt-get -q source --download-only kubernetes; mkdir kube;"
        " tar xzf kubernetes_*.orig.tar.gz -C kube --strip-components=1; cd kube;"
        " export GOPROXY=off KUBE_BUILD_PLATFORMS=linux/amd64 KUBE_GIT_COMMIT=debian"
        " KUBE_GIT_TREE_STATE=clean KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20;"
        " make WHAT=cmd/kube-apiserver"
    )
    KEPT.mkdir(parents=True, exist_ok=True)
    built = machine.path("/root/kube/_output/local/bin/linux/amd64/kube-apiserver")
    shutil.copy(machine.path("/usr/bin/etcd"), KEPT)
    shutil.copy(built, KEPT / "new")
    (KEPT / "new").rename(KEPT / "kube-apiserver")
    shutil.rmtree(machine.root)
    return KEPT


class KubeServer:
    """etcd and kube-apiserver, and calls of an administrator."""

    def __init__(self, found: Path, folder: Path, kinds: list[Served]) -> None:
        self.kinds = {kind.plural: kind for kind in kinds}
        self.url = f"https://127.0.0.1:{free_port()}"
        self.access: tuple[Json, Json] = ({}, {})
        """Parts of a kubeconfig: additions to the cluster, and the user."""
        self._programs, self._folder = found, folder
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._client = httpx2.Client(
            base_url=self.url, verify=False, headers={"authorization": f"Bearer {ADMIN}"}
        )

    # What a test does; the small server has the same methods.

    def put(self, plural: str, wanted: Json) -> Json:
        """Create or replace an object, with its status."""
        kind, one = self.kinds[plural], copy.deepcopy(wanted)
        one |= {"apiVersion": kind.api_version, "kind": kind.kind}
        name = one["metadata"]["name"]
        place = self._place(plural, one["metadata"].get("namespace", ""))
        before = self._call("GET", f"{place}/{name}", missing=True)
        if before:
            one["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            found = self._call("PUT", f"{place}/{name}", one)
        else:
            found = self._call("POST", place, one)
        if kind.has_status and "status" in one:
            one["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            found = self._call("PUT", f"{place}/{name}/status", one)
        return found

    def change(self, plural: str, namespace: str, name: str, change: Json) -> Json:
        """Merge a change into an object."""
        path, found = f"{self._place(plural, namespace)}/{name}", {}
        rest = {key: value for key, value in change.items() if key != "status"}
        for part, body in (("", rest), ("/status", {"status": change.get("status")})):
            if (part == "" and rest) or (part and "status" in change):
                found = self._call("PATCH", path + part, body)
        return found

    def remove(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object."""
        self._call("DELETE", f"{self._place(plural, namespace)}/{name}")

    def of(self, plural: str) -> dict[str, Json]:
        """Return the objects of a kind by name, with the namespace if there is one."""
        items = self._call("GET", self._place(plural, ""))["items"]
        return {
            f"{one['metadata'].get('namespace', '')}/{one['metadata']['name']}".removeprefix(
                "/"
            ): one
            for one in items
        }

    def begin_to_delete(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object that a finalizer holds."""
        self.change(plural, namespace, name, {"metadata": {"finalizers": ["test.heddle.run/held"]}})
        self.remove(plural, namespace, name)

    def clear(self) -> None:
        """Remove all objects except namespaces and checks."""
        for plural in self.kinds.keys() - {"namespaces", "admissionchecks"}:
            for one in self.of(plural).values():
                meta = one["metadata"]
                key = plural, meta.get("namespace", ""), meta["name"]
                if "deletionTimestamp" not in meta:
                    self.remove(*key)
                if meta.get("finalizers"):
                    self.change(*key, {"metadata": {"finalizers": None}})

    def cut_watches(self) -> None:
        """Break every watch: kill the server and start it again."""
        self.kill()
        self.start()

    def compact(self) -> None:
        """Make etcd forget all events, and the server what it remembers of them."""
        self.kill()
        now = httpx2.post(f"{self._etcd_url}/v3beta/kv/range", json={"key": "AA=="}).json()
        revision = now["header"]["revision"]
        httpx2.post(
            f"{self._etcd_url}/v3beta/kv/compaction", json={"revision": revision, "physical": True}
        ).raise_for_status()
        self.start()

    def administrator(self) -> Path:
        """Write a kubeconfig with all rights."""
        file = self._folder / "administrator"
        parts = {
            "clusters": [{"name": "c", "cluster": {"server": self.url, **self._trusted}}],
            "users": [{"name": "u", "user": {"token": ADMIN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "x", **parts}
        file.write_text(json.dumps(config))
        return file

    def lend(self, namespace: str, account: str) -> None:
        """Set ``access`` to that of a service account, with a token like that of a pod."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self._call("POST", path, request)["status"]["token"]
        self.access = self._trusted, {"token": token}

    @property
    def _trusted(self) -> Json:
        return {"certificate-authority": f"{self._folder}/certs/apiserver.crt"}

    @property
    def said(self) -> str:
        """The end of the server's log."""
        return (self._folder / "apiserver.log").read_text()[-3000:]

    # Start and stop.

    def start(self) -> None:
        """Start what does not run, and wait until all kinds are served."""
        if self._etcd is None:
            self._etcd = self._run(
                "etcd", "--data-dir", f"{self._folder}/etcd",
                "--listen-client-urls", self._etcd_url, "--advertise-client-urls", self._etcd_url,
                "--listen-peer-urls", f"http://127.0.0.1:{free_port()}",
            )  # fmt: skip
        key = self._folder / "accounts.key"
        if not key.exists():
            made = rsa.generate_private_key(65537, 2048)
            key.write_bytes(
                made.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
            )
            (self._folder / "tokens").write_text(f"{ADMIN},admin,admin,system:masters\n")
        self._server = self._run(
            "kube-apiserver", "--etcd-servers", self._etcd_url, "--bind-address", "127.0.0.1",
            "--secure-port", self.url.rpartition(":")[2], "--cert-dir", f"{self._folder}/certs",
            "--token-auth-file", f"{self._folder}/tokens", "--authorization-mode", "RBAC",
            "--service-account-issuer", "https://cluster.test",
            "--service-account-key-file", str(key), "--service-account-signing-key-file", str(key),
            "--service-cluster-ip-range", "10.0.0.0/24", "--endpoint-reconciler-type", "none",
        )  # fmt: skip
        wait_until(self._serves, "the API server to serve")

    def _run(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        name = program.removeprefix("kube-")
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen([self._programs / program, *words], stderr=log, stdout=log)

    def _serves(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, self.said
        with suppress(httpx2.HTTPError):
            return self._client.get("/readyz").status_code == 200 and all(
                self._client.get(self._place(plural, "")).status_code in {200, 404}
                for plural in self.kinds
            )
        return False

    def kill(self) -> None:
        """Kill the server with SIGKILL; etcd keeps running."""
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)
            self._server.wait()
            self._server = None

    def close(self) -> None:
        """End both programs."""
        self.kill()
        if self._etcd is not None:
            self._etcd.terminate()
            self._etcd.wait()
        self._client.close()

    def install(self) -> None:
        """Define the custom resources."""
        for kind in [kind for kind in self.kinds.values() if kind.plural in PARTS]:
            self.apply(definition(kind), "customresourcedefinitions")
        wait_until(
            lambda: all(
                self._client.get(self._place(plural, "")).status_code == 200
                for plural in self.kinds
            ),
            "every kind to be served",
        )

    def apply(self, thing: Json, plural: str) -> None:
        """Create an object of a group that tests do not otherwise use."""
        group, _, version = thing["apiVersion"].rpartition("/")
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        space = thing["metadata"].get("namespace")
        self._call("POST", f"{root}/{f'namespaces/{space}/' if space else ''}{plural}", thing)

    def _place(self, plural: str, namespace: str) -> str:
        kind = self.kinds[plural]
        root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        return f"{root}/{f'namespaces/{namespace}/' if namespace else ''}{plural}"

    def _call(self, verb: str, path: str, body: Any = None, *, missing: bool = False) -> Json:
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body)
        answer = self._client.request(verb, path, content=content, headers={"content-type": kind})
        if missing and answer.status_code == 404:
            return {}
        assert answer.is_success, f"{verb} {path}: {answer.text}"
        found: Json = answer.json()
        return found
