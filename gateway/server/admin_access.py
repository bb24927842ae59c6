"""Access to the admin port: allowed host names, keys, and one role for each route.

A request is refused in this order: its host name is not ours (421, hazard K22), it has no valid key (401), its key
lacks the route's role (403). If the configuration has no key, any client may read. Changes are then only accepted
from this machine, unless `admin.remote_changes` is true.

A key is a bearer token or a client certificate. For browsers, the password of HTTP Basic is a token too. Browsers
send it by themselves, so it only allows reading. A token in the URL is ignored.

Failures above a number per second are answered late, and their connections are closed first when places are needed.
A valid key is never refused because of others' failures: tokens are too long to be guessed at any rate (hazard K24).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from config.sections.admin import AdminRole, AdminSettings
from gateway.observability.events import AdminRefusal
from gateway.observability.logging_setup import audit_logger, flooded
from gateway.runtime.clock import NowMs
from gateway.server.admin_keys import AdminKeys, Holder
from gateway.server.admin_tls import AdminTls
from quotas.ip_limits import IPV6_PREFIX_BITS, normalise

ROLES: Final[Mapping[tuple[str, str], AdminRole | None]] = {
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
    ("GET", "/"): AdminRole.READ,
    ("GET", "/metrics"): AdminRole.READ,
    ("GET", "/status.json"): AdminRole.READ,
    ("GET", "/events"): AdminRole.READ,
    ("GET", "/why"): AdminRole.READ,
    ("GET", "/enforcement"): AdminRole.READ,
    ("GET", "/quotas"): AdminRole.READ,
    ("GET", "/quotas/history"): AdminRole.READ,
    ("GET", "/shed"): AdminRole.READ,
    ("GET", "/groups"): AdminRole.READ,
    ("PUT", "/enforcement"): AdminRole.OPERATE,
    ("PUT", "/shed"): AdminRole.OPERATE,
    ("POST", "/reload"): AdminRole.OPERATE,
    ("PUT", "/groups"): AdminRole.OPERATE,
    ("POST", "/quotas/import"): AdminRole.QUOTAS,
}
"""The role that each route needs. None: the route needs no key, since probes have none."""

PASSED_ON: Final = ("/clusters/{name}", "/clusters/{name}/{path}", "/{path}")
"""Routes of a gateway with several clusters; `path` is the route within one cluster."""

MAX_FAILURES_PER_ADDRESS: Final = 5
MAX_FAILURES: Final = 50
"""The most failures per second, of one address and in all, that are answered at once; others are answered late."""

_WINDOW_MS: Final = 1_000
_REFUSED: Final = "admin_refused"
_HOLDER: Final = web.RequestKey("holder", Holder)
_POD_HOSTS: Final = ("*.svc", "*.svc.cluster.local")
_IN_A_POD: Final = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets this variable in each container."""

_log = audit_logger()


def pod_hosts(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The host names of Services, if this process is in a pod; no name in public DNS ends like them."""
    return _POD_HOSTS if _IN_A_POD in environment else ()


class FailureRate:
    """Counts failed requests of this second. Pure: time is an argument. Keeps at most `MAX_FAILURES` networks."""

    def __init__(self) -> None:
        """No request has failed."""
        self._since_ms = 0
        self._total = 0
        self._by_network: Counter[str] = Counter()

    def exceeded(self, network: str, *, now_ms: int) -> bool:
        """Count a failure.

        Args:
            network: of the peer's address.
            now_ms: the present.

        Returns:
            Whether there are too many failures to answer this one at once.
        """
        if now_ms - self._since_ms >= _WINDOW_MS:
            self._since_ms, self._total = now_ms, 0
            self._by_network.clear()
        if self._total >= MAX_FAILURES or self._by_network[network] >= MAX_FAILURES_PER_ADDRESS:
            return True
        self._total += 1
        self._by_network[network] += 1
        return False


class AdminAccess:
    """See the module.

    Attributes:
        refusals: refused requests, by reason.
    """

    def __init__(
        self,
        settings: Callable[[], AdminSettings],
        keys: AdminKeys,
        now_ms: NowMs,
        *,
        tls: AdminTls | None = None,
        hosts: tuple[str, ...] = (),
    ) -> None:
        """Make it.

        Args:
            settings: in force.
            keys: in force.
            now_ms: the clock.
            tls: reads the names in certificates; None: there is no TLS.
            hosts: host names that are always allowed, besides those of the settings.
        """
        self._settings = settings
        self._keys = keys
        self._now_ms = now_ms
        self._tls = tls
        self._hosts = ("localhost", *hosts)
        self._failures = FailureRate()
        self.refusals: Counter[AdminRefusal] = Counter()

    def refusal(self, request: web.Request) -> tuple[web.Response, bool] | None:
        """The response that refuses a request, and whether to send it late; None: the request is allowed."""
        named = request.headers.get("Host")
        if named is not None and not self._ours(host_of(named)):
            self._record(request, AdminRefusal.HOST, host=named)
            text = "the port does not answer under this host name; add the name to admin.allowed_hosts"
            return answer(421, text), False
        route = route_of(request)
        known = route in ROLES
        role = ROLES.get(route)
        if known and role is None:
            return None
        if not self._keys:
            away = role not in (None, AdminRole.READ) and not is_this_machine(request.remote)
            if away and not self._settings().remote_changes:
                return self._failed(request, AdminRefusal.REMOTE, None)
            return None
        holder, basic, reason = self._holder(request)
        if holder is None:
            return self._failed(request, reason, None)
        if known and (role not in holder.roles or (basic and role is not AdminRole.READ)):
            return self._failed(request, AdminRefusal.ROLE, holder, role)
        request[_HOLDER] = holder
        return None

    @staticmethod
    def check_routes(router: web.UrlDispatcher) -> None:
        """Check that each route has a role, so that none is unprotected by oversight.

        Raises:
            RuntimeError: a route is not in `ROLES`.
        """
        for route in router.routes():
            path = "" if route.resource is None else route.resource.canonical
            if route.method != "HEAD" and path not in PASSED_ON and (route.method, path) not in ROLES:
                raise RuntimeError(f"{route.method} {path} has no role")

    def caller(self, request: web.Request) -> str:
        """The caller, for the log and the history: the address, the key's name and the role that the route needs."""
        holder = request.get(_HOLDER)
        if holder is None:
            return f"admin port, {request.remote}"
        return f"admin port, {request.remote}, key {holder.name} ({ROLES.get(route_of(request))})"

    def still_allows(self, request: web.Request) -> bool:
        """Whether an allowed request with an endless response would still be allowed: keys may have changed."""
        holder, _, _ = self._holder(request)
        return not self._keys or (holder is not None and ROLES.get(route_of(request)) in holder.roles)

    def _ours(self, host: str) -> bool:
        if is_address(host):
            return True
        name = host.lower()
        bound = self._settings().bind.host.lower()
        return any(
            name == each or (each.startswith("*.") and name.endswith(each[1:]) and len(name) >= len(each))
            for each in (bound, *self._hosts, *self._settings().allowed_hosts)
        )

    def _holder(self, request: web.Request) -> tuple[Holder | None, bool, AdminRefusal]:
        """The holder of the request's key, whether the key came by Basic, and the reason if there is no holder."""
        given = request.headers.getall("Authorization", [])
        if not given:
            return self._certified(request)
        scheme, _, text = given[0].partition(" ")
        token = text.strip(" ").encode("utf-8", "surrogateescape")
        basic = scheme.lower() == "basic"
        if len(given) > 1 or not token or scheme.lower() not in ("bearer", "basic"):
            return None, basic, AdminRefusal.MALFORMED
        if basic:
            try:
                token = base64.b64decode(token, validate=True).partition(b":")[2]
            except binascii.Error:
                return None, basic, AdminRefusal.MALFORMED
        return self._keys.of_token(token), basic, AdminRefusal.TOKEN

    def _certified(self, request: web.Request) -> tuple[Holder | None, bool, AdminRefusal]:
        if self._tls is None or request.transport is None or not self._keys.by_certificate:
            return None, False, AdminRefusal.NO_KEY
        name = self._tls.name_of(request.transport.get_extra_info("ssl_object"))
        if name is None:
            return None, False, AdminRefusal.NO_KEY
        return self._keys.of_certificate(name), False, AdminRefusal.CERTIFICATE

    def _failed(
        self, request: web.Request, reason: AdminRefusal, holder: Holder | None, role: AdminRole | None = None
    ) -> tuple[web.Response, bool]:
        self._record(request, reason, key=None if holder is None else holder.name)
        if reason is AdminRefusal.REMOTE:
            return answer(403, "only from this machine, since admin.remote_changes is false"), False
        if holder is not None:
            # Not counted as a failure, which stands for guessing: this request has a valid key.
            return answer(
                403, f"the key {holder.name} does not have the role {role}, or not by password"
            ), False
        network = (
            normalise(request.remote or "", IPV6_PREFIX_BITS) if is_address(request.remote or "") else ""
        )
        late = self._failures.exceeded(network, now_ms=self._now_ms())
        if late:
            return answer(429, "too many requests without a valid key"), True
        response = answer(401, _WHAT_TO_DO[reason])
        for scheme in ("Bearer", "Basic"):
            response.headers.add("WWW-Authenticate", f'{scheme} realm="Sluice admin port"')
        return response, False

    def _record(self, request: web.Request, reason: AdminRefusal, **more: str | None) -> None:
        self.refusals[reason] += 1
        if not flooded(_REFUSED):
            asked = {"method": request.method, "path": request.path}
            _log.warning(_REFUSED, reason=reason.value, peer=request.remote, **asked, **more)


_WHAT_TO_DO: Final = {
    AdminRefusal.NO_KEY: "needs a key: the header Authorization: Bearer TOKEN, or a client certificate",
    AdminRefusal.TOKEN: "the token is not one of admin.keys",
    AdminRefusal.CERTIFICATE: "the certificate is not one of admin.keys",
    AdminRefusal.MALFORMED: "needs one header Authorization: Bearer TOKEN",
}


def route_of(request: web.Request) -> tuple[str, str]:
    """The route that serves a request, independent of the path's spelling; HEAD counts as GET.

    A request that is passed on to a cluster has the route within that cluster.
    """
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    if path in PASSED_ON:
        path = f"/{request.match_info.get('path', '')}"
    return "GET" if request.method == "HEAD" else request.method, path


def is_this_machine(address: str | None) -> bool:
    """Whether a peer's address is a loopback address, also as IPv4 inside IPv6."""
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def host_of(named: str) -> str:
    """The host in the value of a Host header, without port and brackets."""
    if named.startswith("["):
        return named[1:].partition("]")[0]
    return named.partition(":")[0].rstrip(".")


def is_address(host: str) -> bool:
    """Whether a host is an address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def answer(status: int, reason: str) -> web.Response:
    """A refusal."""
    return web.json_response({"error": reason}, status=status)
