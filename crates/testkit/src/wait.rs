use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// Asks again and again until the answer is there.
///
/// # Errors
/// It is not within the deadline; `what` says what was awaited.
pub async fn wait_until<T, F>(within: Duration, what: &str, mut ask: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + within;
    loop {
        if let Some(answer) = ask().await {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            bail!("waited {within:?} in vain: {what}");
        }
        sleep(Duration::from_millis(20)).await;
    }
}
