use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An answer of an HTTP endpoint.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Asks an endpoint on 127.0.0.1.
pub(crate) async fn get(port: u16, path: &str) -> Result<Answer> {
    let asked = async {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        socket.read_to_string(&mut text).await?;
        Ok::<_, anyhow::Error>(text)
    };
    let text = timeout(Duration::from_secs(5), asked).await.context("no answer")??;
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok(Answer { status: status.context("no HTTP status")?, body: body.to_owned() })
}
