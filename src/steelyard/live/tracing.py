"""Traces of requests and turns, for OpenTelemetry.

A request is a span, with a child for each wait and each engine that was asked. The client's ``traceparent`` is its
parent, and the engine gets the span's own. No text of a body is ever in a span.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from steelyard.errors import UserError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""The variable of the environment that says where traces go. Without it, nothing of OpenTelemetry is imported."""


class Tracing:
    """Makes spans, with the tracers of a provider."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("steelyard")
        self._context = TraceContextTextMapPropagator()
        self._server, self._client = trace.SpanKind.SERVER, trace.SpanKind.CLIENT

    @contextmanager
    def serving(self, name: str, headers: Mapping[str, str], trajectory: str = "") -> Iterator[Span]:
        """The span of a client's request, below the client's own."""
        attributes = {"steelyard.trajectory": trajectory} if trajectory else {}
        with self._tracer.start_as_current_span(
            name,
            context=self._context.extract(headers),
            kind=self._server,
            attributes=attributes,
            record_exception=False,  # messages of engines may repeat what a client sent
            set_status_on_exception=False,
        ) as span:
            yield span

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The span of a turn that waits until the core places it."""
        with self._tracer.start_as_current_span("wait for placement", record_exception=False):
            yield

    @contextmanager
    def engine(self, number: int, headers: dict[str, str]) -> Iterator[None]:
        """The span of a request to an engine. Its ``traceparent`` is added to the headers of that request."""
        with self._tracer.start_as_current_span(
            "engine", kind=self._client, attributes={"steelyard.engine": number}, record_exception=False
        ):
            self._context.inject(headers)
            yield


def tracing_from_environment() -> Tracing | None:
    """Tracing as the environment asks for; None if it does not."""
    if not os.environ.get(ENDPOINT):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        raise UserError(
            f"{ENDPOINT} is set, which needs {missing.name}; install opentelemetry-sdk and "
            "opentelemetry-exporter-otlp-proto-http, or unset it"
        ) from None
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "steelyard-gateway"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)
