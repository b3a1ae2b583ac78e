// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of requests, and their text for Prometheus.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::batch::BatchMetrics;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Route {
    route: String,
}

/// Counters of the server, in one registry with those of its batcher.
#[derive(Debug)]
pub(super) struct HttpMetrics {
    registry: Registry,
    requests: Family<Outcome, Counter>,
    seconds: Family<Route, Histogram>,
    in_flight: Gauge,
    /// Connections that are open.
    pub(super) connections: Gauge,
    /// Connections that were refused because there were too many.
    pub(super) refused: Counter,
}

/// From 1 ms to 65 s: a request may outlive a freeze.
fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

impl HttpMetrics {
    /// New counters. The server started `started` seconds after 1970.
    pub(super) fn new(batch: &BatchMetrics, started: u64) -> Self {
        let mut registry = Registry::default();
        let start = Gauge::<i64>::default();
        start.set(i64::try_from(started).unwrap_or(i64::MAX));
        let help = "When the process started, in seconds since 1970; a restore does not change it";
        registry.register_with_unit("process_start_time", help, Unit::Seconds, start);
        let own = registry.sub_registry_with_prefix("embed");
        let requests = Family::default();
        own.register("http_requests", "Requests ended, 499: the client was gone", requests.clone());
        let seconds = Family::new_with_constructor(latency as fn() -> Histogram);
        own.register_with_unit("http_request", "From headers to answer", Unit::Seconds, seconds.clone());
        let in_flight = Gauge::default();
        own.register("http_requests_in_flight", "Requests without an answer yet", in_flight.clone());
        let (connections, refused) = (Gauge::default(), Counter::default());
        own.register("connections", "Open connections", connections.clone());
        own.register("connections_refused", "Connections over the limit", refused.clone());
        batch.register(own);
        Self { registry, requests, seconds, in_flight, connections, refused }
    }

    pub(super) fn begin(&self) {
        self.in_flight.inc();
    }

    pub(super) fn end(&self, route: &str, status: u16, took: Duration) {
        self.in_flight.dec();
        self.requests.get_or_create(&Outcome { route: route.to_owned(), status }).inc();
        self.seconds.get_or_create(&Route { route: route.to_owned() }).observe(took.as_secs_f64());
    }

    pub(super) fn in_flight(&self) -> usize {
        usize::try_from(self.in_flight.get()).unwrap_or(0)
    }

    /// All of them, in the OpenMetrics text format.
    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}
