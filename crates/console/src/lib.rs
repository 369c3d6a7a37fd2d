//! The relay's HTTP endpoint:
//!
//! - `GET /livez`: 200 while the run loop shows signs of life, else 503: restart the process.
//! - `GET /readyz`: 200 when events flow or could flow, else 503; both with the reasons as JSON.
//! - `GET /metrics`: Prometheus text.
//! - `GET /status`: everything the relay knows of itself, as JSON.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use relay::{Observed, metrics as relay_metrics};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Installs the Prometheus recorder for this process and describes every metric.
///
/// # Errors
/// A recorder is installed already.
pub fn install_recorder() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(
            Matcher::Full(relay_metrics::PUBLISH_LATENCY.to_owned()),
            &relay_metrics::PUBLISH_LATENCY_BUCKETS,
        )?
        .install_recorder()?;
    relay_metrics::describe();
    Ok(handle)
}

#[derive(Clone)]
struct Endpoint {
    observed: Arc<Observed>,
    prometheus: PrometheusHandle,
}

/// Serves the endpoint on a bound listener until `stop` resolves.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    observed: Arc<Observed>,
    prometheus: PrometheusHandle,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .with_state(Endpoint { observed, prometheus });
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

/// Binds the endpoint's address.
///
/// # Errors
/// The address is taken or not this machine's.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

async fn livez(State(endpoint): State<Endpoint>) -> Response {
    let live = endpoint.observed.snapshot().is_alive();
    let code = if live { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(json!({ "live": live }))).into_response()
}

async fn readyz(State(endpoint): State<Endpoint>) -> Response {
    let snapshot = endpoint.observed.snapshot();
    let reasons = snapshot.reasons();
    let code = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "ready": reasons.is_empty(),
        "standby": snapshot.is_standby(),
        "reasons": reasons,
    });
    (code, Json(body)).into_response()
}

async fn metrics(State(endpoint): State<Endpoint>) -> Response {
    relay_metrics::export(&endpoint.observed.snapshot());
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, endpoint.prometheus.render()).into_response()
}

async fn status(State(endpoint): State<Endpoint>) -> Json<Value> {
    Json(endpoint.observed.snapshot().to_json())
}
