"""deploy/kustomize, rendered by the real kubectl."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from heddle_agent.settings import load_host_settings
from heddle_agent.settings import load_settings as load_agent
from heddle_controller.settings import load_settings as load_controller
from heddle_controller.store.redis.address import parse_address
from tests.support.kubectl import Thing, kubectl, render
from tests.unit.deploy.containerfile import ROOT, read

OVERLAYS = ("own-redis", "whole")
VERSIONS = ("1.29", "1.33", "1.37")
PAGE = ROOT / "deploy" / "kustomize" / "README.md"
KINDS_WITH_PODS = ("StatefulSet", "DaemonSet", "Deployment", "Job", "CronJob")
MAY = {  # workload and container: capabilities that it may have
    ("agent", "agent"): {"NET_ADMIN", "NET_RAW"},
    ("host", "folder"): {"CHOWN", "FOWNER"},
}
BY_HAND = {("Secret", "heddle-controller-tls"), ("Secret", "heddle-store")}
PODS = {"metadata.name": "pod-0", "status.podIP": "10.1.0.7", "spec.nodeName": "leaf0",
        "status.hostIP": "10.0.0.7"}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield kubectl, and delete its 60 MB afterwards."""
    path = kubectl(tmp_path_factory.mktemp("kubectl"))
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def rendered(program: Path) -> dict[str, list[Thing]]:
    """Return the objects of each overlay."""
    return {overlay: render(program, overlay) for overlay in OVERLAYS}


@pytest.fixture(params=OVERLAYS)
def things(rendered: dict[str, list[Thing]], request: pytest.FixtureRequest) -> list[Thing]:
    """Return the objects of one overlay, each in turn."""
    return rendered[request.param]


def of(things: list[Thing], kind: str) -> dict[str, Thing]:
    """Return the objects of a kind by name."""
    return {each["metadata"]["name"]: each for each in things if each["kind"] == kind}


def pods(things: list[Thing]) -> dict[str, Thing]:
    """Return the pod template of each workload by the workload's name."""
    found = [each for each in things if each["kind"] in KINDS_WITH_PODS]
    return {each["metadata"]["name"]: each["spec"]["template"] for each in found}


def containers(pod: Thing) -> list[Thing]:
    """Return all containers of a pod, including init containers."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def label(things: list[Thing], selector: Thing) -> dict[str, Thing]:
    """Return the pods that a selector of labels matches."""
    wanted = selector.get("matchLabels", selector)
    return {
        name: pod
        for name, pod in pods(things).items()
        if wanted.items() <= pod["metadata"]["labels"].items()
    }


def variables(things: list[Thing], container: Thing) -> dict[str, str]:
    """Return a container's environment, with a value for each secret that it names."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= of(things, "ConfigMap")[source["configMapRef"]["name"]]["data"]
    for entry in container["env"]:
        if "value" in entry:
            value = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], entry["value"])
        elif "fieldRef" in entry["valueFrom"]:
            value = PODS[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            reference = entry["valueFrom"]["secretKeyRef"]
            value = {
                ("heddle-store", "url"): "redis+sentinel://:x@redis-0.redis/heddle",
                ("heddle-store", "password"): "x",
            }[reference["name"], reference["key"]]
        found[entry["name"]] = value
    return found


def refused(thing: Thing, version: str = "1.33") -> str | None:
    """Return what the API's schema has against an object, or None."""
    try:
        kubernetes_validate.validate(thing, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return None


def test_the_schemas_of_the_api_take_every_object(rendered: dict[str, list[Thing]]) -> None:
    """Validation is strict: unknown keys and values of another type are refused."""
    whole = rendered["whole"]
    kinds = {each["kind"] for each in whole}
    one_of_each = [next(each for each in whole if each["kind"] == kind) for kind in sorted(kinds)]
    for thing in [*whole, *rendered["own-redis"]]:
        assert refused(thing) is None, (thing["metadata"]["name"], refused(thing))
    for version in VERSIONS:
        assert [refused(thing, version) for thing in one_of_each] == [None] * len(one_of_each)
    for key, value in (("replicsa", 2), ("replicas", "two")):
        wrong = copy.deepcopy(of(whole, "StatefulSet")["controller"])
        wrong["spec"][key] = value
        assert refused(wrong) is not None


def test_containers_may_do_little(things: list[Thing]) -> None:
    """Containers have a read-only root, bounded memory, and only the capabilities named here.

    They cannot gain a right. A container without capabilities does not run as root.
    """
    for name, pod in pods(things).items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False, "HEDDLE_..._PORT of a Service is no setting"
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostPID", "hostIPC"} & spec.keys()
        assert spec.get("hostNetwork", False) == (name == "agent")
        for container in containers(pod):
            rights = spec["securityContext"] | container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["allowPrivilegeEscalation"] is False
            assert "privileged" not in rights
            assert rights["capabilities"]["drop"] == ["ALL"]
            added = set(rights["capabilities"].get("add", ()))
            assert added == MAY.get((name, container["name"]), set())
            assert (rights["runAsUser"] == 0) == bool(added)
            assert rights.get("runAsNonRoot", False) == (not added)
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_the_namespace_of_controllers_takes_no_more(things: list[Thing]) -> None:
    """The namespace is restricted: its pods use no folder, network or port of a node.

    Agents have a namespace of their own.
    """
    spaces = of(things, "Namespace")
    level = "pod-security.kubernetes.io/enforce"
    assert spaces["heddle"]["metadata"]["labels"][level] == "restricted"
    for each in things:
        if each["kind"] == "Namespace":
            continue
        assert each["metadata"]["namespace"] in spaces
        if each["kind"] in KINDS_WITH_PODS and each["metadata"]["namespace"] == "heddle":
            spec = each["spec"]["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert not any("hostPath" in volume for volume in spec["volumes"])
            ports = [port for c in spec["containers"] for port in c["ports"]]
            assert not any("hostPort" in port for port in ports)


REFERENCES = {  # key: the field that holds the name (None: the value itself), and the object's kind
    "serviceAccountName": (None, "ServiceAccount"),
    "configMap": ("name", "ConfigMap"),
    "configMapRef": ("name", "ConfigMap"),
    "secret": ("secretName", "Secret"),
    "secretKeyRef": ("name", "Secret"),
}


def references(part: Any) -> Iterator[tuple[str, str]]:
    """Yield kind and name of every object that is referred to below a part of an object."""
    if isinstance(part, list):
        for each in part:
            yield from references(each)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key in REFERENCES:
                name, kind = REFERENCES[key]
                yield kind, value if name is None else value[name]
            else:
                yield from references(value)


def test_what_is_referred_to_is_there_or_on_the_page(things: list[Thing]) -> None:
    """ConfigMaps and accounts are in the overlay.

    Secrets are those that the page says to create.
    """
    there = {(each["kind"], each["metadata"]["name"]) for each in things}
    asked = set(references([pod["spec"] for pod in pods(things).values()]))
    assert asked - there == BY_HAND
    for kind, name in BY_HAND:
        assert f"| {kind} `{name}` |" in PAGE.read_text()


def test_services_lead_to_ports(things: list[Thing]) -> None:
    """Each Service selects pods of the overlay, and these have the ports that it names."""
    for service in of(things, "Service").values():
        wanted = dict(service["spec"]["selector"])
        name = wanted.pop("statefulset.kubernetes.io/pod-name", "controller-0")
        found = label(things, wanted) if wanted else {"": pods(things)[name.rpartition("-")[0]]}
        assert found
        for pod in found.values():
            named = {port["name"] for c in pod["spec"]["containers"] for port in c["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= named


def test_mounts_are_volumes(things: list[Thing]) -> None:
    """Each mount has a volume, and each volume a mount."""
    workloads = [each for each in things if each["kind"] in KINDS_WITH_PODS]
    for workload in workloads:
        spec = workload["spec"]["template"]["spec"]
        claims = {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in spec["volumes"]} | claims
        every = containers(workload["spec"]["template"])
        mounts = {mount["name"] for c in every for mount in c["volumeMounts"]}
        assert mounts == volumes, workload["metadata"]["name"]


def test_no_single_node_takes_all(things: list[Thing]) -> None:
    """Replicas are on different nodes, and are evicted one at a time."""
    budgets = of(things, "PodDisruptionBudget")
    several = {n: s for n, s in of(things, "StatefulSet").items() if s["spec"]["replicas"] > 1}
    assert budgets.keys() == several.keys()
    for name, workload in several.items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert budgets[name]["spec"]["maxUnavailable"] == 1
        assert budgets[name]["spec"]["selector"]["matchLabels"].items() <= labels.items()
        affinity = workload["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    assert several["controller"]["spec"]["replicas"] == 2


def test_what_serves_is_probed(things: list[Thing]) -> None:
    """The image's health check tells whether it is ready. /metrics answers even without a store."""
    for pod in pods(things).values():
        for container in pod["spec"]["containers"]:
            assert ("readinessProbe" in container) == ("ports" in container)
            assert ("livenessProbe" in container) == ("ports" in container)
    (controller,) = pods(things)["controller"]["spec"]["containers"]
    health = read("controller")[1][-1].one("HEALTHCHECK").exec_form()
    assert controller["readinessProbe"]["exec"]["command"] == health
    assert controller["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": "metrics"}


def started(monkeypatch: pytest.MonkeyPatch, things: list[Thing], name: str) -> dict[str, str]:
    """Set the variables of a workload's container in this process, and return them."""
    (container,) = pods(things)[name]["spec"]["containers"]
    found = variables(things, container)
    for key, value in found.items():
        monkeypatch.setenv(key, value)
    return found


def test_the_controller_starts_from_its_variables(
    things: list[Thing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every variable is a setting, TLS needs client certificates, and mounted files are named."""
    given = started(monkeypatch, things, "controller")
    settings = load_controller()
    assert {f"HEDDLE_{field.upper()}" for field in settings.model_fields_set} == given.keys()
    assert not settings.insecure
    assert settings.listen == "0.0.0.0:7400"
    assert settings.metrics_host == PODS["status.podIP"]
    named = {settings.tls_cert, settings.tls_key, settings.tls_client_ca}
    assert named == {Path("/etc/heddle/tls") / name for name in ("tls.crt", "tls.key", "ca.crt")}
    assert all(f"`{path.name}`" in PAGE.read_text() for path in named if path)


def test_the_agents_start_from_their_variables(
    rendered: dict[str, list[Thing]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents run as the node's switch or host, find controllers by one name, and use TLS."""
    whole = rendered["whole"]
    started(monkeypatch, whole, "agent")
    agent = load_agent()
    service = of(whole, "Service")["controller"]
    name = f"controller.{service['metadata']['namespace']}.svc:7400"
    assert service["spec"]["clusterIP"] == "None"
    assert (agent.fabric, agent.switch, agent.fib) == ("fabrics/f1", "leaf0", "linux")
    assert agent.controller == (name,)
    assert (agent.metrics_host, agent.metrics_port) == ("10.0.0.7", 7402)
    assert agent.peer_notices == "10.0.0.7:7402"
    assert not agent.insecure
    started(monkeypatch, whole, "host")
    host = load_host_settings()
    assert (host.fabric, host.host, host.controller) == ("fabrics/f1", "leaf0", (name,))
    assert not host.insecure
    page = PAGE.read_text()
    for settings in (agent, host):
        for path in (settings.tls_ca, settings.tls_cert, settings.tls_key):
            assert path is not None
            assert path.parent == Path("/etc/heddle/tls")
            assert f"`{path.name}`" in page


def flows(things: list[Thing]) -> set[tuple[str, str, int]]:
    """Return who may reach whom in the namespace by the policies: peer, pod and port."""
    found: set[tuple[str, str, int]] = set()
    ours = list(of(things, "NetworkPolicy").values())
    for policy in (each for each in ours if each["metadata"]["namespace"] == "heddle"):
        for target in label(things, policy["spec"]["podSelector"]):
            for rule in policy["spec"].get("ingress", []):
                ports = [port["port"] for port in rule["ports"]]
                peers = ["all"] if "from" not in rule else [
                    value for peer in rule["from"] for value in taken(peer["podSelector"])
                ]  # fmt: skip
                found |= {(peer, target, port) for peer in peers for port in ports}
    return found


def taken(selector: Thing) -> list[str]:
    """Return the values of the label app that a selector matches."""
    if "matchLabels" in selector:
        return [selector["matchLabels"]["app"]]
    (expression,) = selector["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("app", "In")
    return list(expression["values"])


def test_only_what_has_to_reaches_a_pod(rendered: dict[str, list[Thing]]) -> None:
    """Only these are allowed: the API to all, metrics to Prometheus, Redis to its own users."""
    for things in rendered.values():
        deny = of(things, "NetworkPolicy")["deny"]["spec"]
        assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert flows(rendered["whole"]) == {
        ("all", "controller", 7400),
        ("prometheus", "controller", 7401),
        *(
            (peer, "redis", port)
            for peer in ("heddle-controller", "redis")
            for port in (6379, 26379)
        ),
    }


def test_prometheus_has_the_files_of_its_folder(rendered: dict[str, list[Thing]]) -> None:
    """The files are identical, and what they scrape by name is in the overlay."""
    whole = rendered["whole"]
    (name,) = [n for n in of(whole, "ConfigMap") if n.startswith("prometheus-")]
    data = of(whole, "ConfigMap")[name]["data"]
    folder = ROOT / "deploy" / "prometheus"
    assert data == {f: (folder / f).read_text() for f in ("prometheus.yaml", "heddle.rules.yaml")}
    scraped = {j["job_name"]: j for j in yaml.safe_load(data["prometheus.yaml"])["scrape_configs"]}
    stateful = of(whole, "StatefulSet")["controller"]["spec"]
    assert scraped["heddle-controller"]["static_configs"][0]["targets"] == [
        f"controller-{n}.{stateful['serviceName']}:7401" for n in range(stateful["replicas"])
    ]
    (named,) = scraped["heddle-agent"]["dns_sd_configs"]
    service = of(whole, "Service")["agent"]
    assert named["names"] == [f"agent.{service['metadata']['namespace']}"]
    assert named["port"] == service["spec"]["ports"][0]["port"]


def test_the_pages_commands_make_the_secrets(program: Path, tmp_path: Path) -> None:
    """With --dry-run, the page's commands make the Secrets that the controllers need."""
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name in ("controller.crt", "controller.key", "ca.crt"):
        (tmp_path / name).write_text(name)
    *lines, last = script.replace("\\\n", " ").strip().splitlines()
    typed = [f"{each} --dry-run=client -o yaml; echo ---" if each.startswith("kubectl") else each
             for each in lines]  # fmt: skip
    overlay = last.removeprefix("kubectl apply -k ")
    assert (ROOT / overlay).is_dir()
    done = subprocess.run(
        ["bash", "-euc", "\n".join(typed)],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = of([t for t in yaml.safe_load_all(done.stdout) if t], "Secret")
    assert {("Secret", name) for name in made} == BY_HAND
    assert made["heddle-controller-tls"]["data"].keys() == {"tls.crt", "tls.key", "ca.crt"}
    assert made["heddle-store"]["data"].keys() == {"password", "url"}
    (url,) = re.findall(r"--from-literal=url=(\S+)", script)
    assert [host for host, _ in parse_address(url).hosts] == [f"redis-{n}.redis" for n in range(3)]
