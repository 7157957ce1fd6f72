"""The layers around the HTTP app, from the settings: who may come in, and from which pages."""

from gateway.admission import Admission, Gate
from gateway.browsers import BrowserGuard, BrowserRules, rules_without_keys, with_cors
from gateway.http_body import App
from gateway.key_file import key_ring
from gateway.key_limits import KeyLimits
from gateway.kserve_http_direct import DirectInfer
from gateway.kserve_service import Service
from gateway.settings import Settings


def make_gate(settings: Settings) -> Gate | None:
    """None where no keys are set. Raises SettingsError."""
    ring = key_ring(settings)
    if not len(ring):
        return None
    return Gate(ring, KeyLimits(), share_prefixes=settings.share_prefix_cache)


def guarded(app: App, gate: Gate | None, settings: Settings) -> App:
    """`app` behind its checks, CORS outermost."""
    if gate is not None:
        app = Admission(app, gate, guard_metrics=settings.metrics_require_key)
    else:
        app = BrowserGuard(app, _rules(settings))
    return with_cors(app, settings.cors_allow_origin) if settings.cors_allow_origin else app


def direct_infer(service: Service, settings: Settings) -> DirectInfer:
    """The way around `guarded`, which keeps to the same rules."""
    return DirectInfer(service, _rules(settings))


def _rules(settings: Settings) -> BrowserRules:
    return rules_without_keys(settings.http_address, settings.http_allowed_host, settings.cors_allow_origin)


def guarded_metrics(app: App, gate: Gate | None, settings: Settings) -> App:
    if gate is not None and settings.metrics_require_key:
        return Admission(app, gate, guard_metrics=True)
    return app
